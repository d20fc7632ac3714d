"""Reading vLLM's metrics: series summed up, odd values left out, age fading."""

import orjson
import pytest

from penstock.balancing.engine_report import EngineReport
from penstock.bench.sim.metrics import render
from penstock.bench.sim.server import SimServer
from penstock.health.scrape import VALUE_MAX, read_report

TWO_ENGINES = b"""\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_running{engine="1",model_name="m"} 4.0
vllm:num_requests_waiting{engine="0",model_name="m"} 1.0
vllm:num_requests_waiting{engine="1",model_name="m"} 0.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="m",reason="capacity"} 100.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
vllm:kv_cache_usage_perc{engine="1",model_name="m"} 0.5
vllm:engine_sleep_state{engine="0",model_name="m",sleep_state="awake"} 1.0
vllm:engine_sleep_state{engine="0",model_name="m",sleep_state="discard_all"} 0.0
vllm:prefix_cache_queries_total{engine="0",model_name="m"} 1000.0
vllm:prefix_cache_hits_total{engine="0",model_name="m"} 250.0
vllm:generation_tokens_total{engine="0",model_name="m"} 1.234567e+06
vllm:cache_config_info{block_size="32",kv_cache_size_tokens="32768",num_gpu_blocks="1024"} 1.0
vllm:cache_config_info{block_size="32",kv_cache_size_tokens="32768",num_gpu_blocks="1024"} 1.0
"""
MORE = b"""\
# TYPE vllm:num_requests_waiting_by_reason gauge
vllm:num_requests_waiting_by_reason{engine="1",model_name="m",reason="capacity"} 2.0
vllm:num_requests_waiting_by_reason{engine="1",model_name="m",reason="deferred"} 3.0
# TYPE vllm:num_preemptions_total counter
vllm:num_preemptions_total{engine="0",model_name="m"} 5.0
vllm:num_preemptions_total{engine="1",model_name="m"} 6.0
# TYPE vllm:prompt_tokens_total counter
vllm:prompt_tokens_total{engine="0",model_name="m"} 4096.0
# TYPE vllm:prompt_tokens_cached_total counter
vllm:prompt_tokens_cached_total{engine="0",model_name="m"} 1024.0
# TYPE vllm:iteration_tokens_total histogram
vllm:iteration_tokens_total_bucket{engine="0",model_name="m",le="1.0"} 3.0
vllm:iteration_tokens_total_bucket{engine="0",model_name="m",le="+Inf"} 4.0
vllm:iteration_tokens_total_count{engine="0",model_name="m"} 4.0
vllm:iteration_tokens_total_sum{engine="0",model_name="m"} 1003.0
vllm:iteration_tokens_total_bucket{engine="1",model_name="m",le="+Inf"} 1.0
vllm:iteration_tokens_total_count{engine="1",model_name="m"} 1.0
vllm:iteration_tokens_total_sum{engine="1",model_name="m"} 7.0
"""


async def report_of(text: bytes) -> EngineReport:
    report = await read_report(text, 0.0, 0)
    assert report is not None
    return report


async def test_engines_are_summed_up() -> None:
    assert await read_report(TWO_ENGINES, 5.0, 2) == EngineReport(
        at_s=5.0,
        running=7,
        waiting=1,
        kv_usage=0.5,
        kv_tokens=65_536,
        prefix_queries_tokens=1_000,
        prefix_hits_tokens=250,
        generated_tokens=1_234_567,
        awake=True,
        known_requests=2,
        engines=2,
        waiting_for_room=100,
    )


async def test_an_engine_that_does_not_tell_its_cache_usage_is_not_told_as_empty() -> None:
    for text, told in ((TWO_ENGINES, True), (TWO_ENGINES.replace(b"kv_cache_usage", b"x"), False)):
        assert (await report_of(text)).kv_told is told


@pytest.mark.parametrize(("label", "keeps"), [(b"True", True), (b"False", False), (b"", True)])
async def test_an_engine_may_tell_that_it_keeps_no_prefixes(label: bytes, keeps: bool) -> None:
    told = b'{enable_prefix_caching="%b",block_size' % label
    report = await report_of(TWO_ENGINES.replace(b"{block_size", told))
    assert report.keeps_prefixes is keeps


async def test_what_only_people_read_is_summed_up_too() -> None:
    text = TWO_ENGINES.replace(b"\nvllm:num_requests_waiting_by", b"\n_")
    report = await report_of(text + MORE)
    assert (report.waiting_for_room, report.deferred) == (2, 3)
    assert (report.preemptions, report.prompt_tokens) == (11, 4_096)
    assert (report.steps, report.step_tokens) == (5, 1_010)


async def test_each_search_ends_at_the_next_family() -> None:
    """A series that stands apart from its family is not the format, and costs no search."""
    text = TWO_ENGINES + b"# TYPE up gauge\nup 1\n" + TWO_ENGINES
    assert (await report_of(text)).running == 7


@pytest.mark.parametrize("value", [b"NaN", b"+Inf", b"-Inf", b"-3", b"", b"many", b"1e300"])
async def test_what_is_no_count_is_left_out(value: bytes) -> None:
    text = TWO_ENGINES.replace(
        b'running{engine="1",model_name="m"} 4.0', b'running{a="}"} ' + value
    )
    assert (await report_of(text)).running == 3


async def test_labels_may_hold_anything() -> None:
    text = b'vllm:num_requests_running{model_name="a} 9 \\"b"} 2.0 1700000000'
    assert (await report_of(text)).running == 2


async def test_another_servers_metrics_are_no_report() -> None:
    assert await read_report(b"# HELP up\nup 1\n", 0.0, 0) is None
    assert await read_report(b"", 0.0, 0) is None


async def test_an_engine_that_sleeps() -> None:
    text = TWO_ENGINES.replace(b'sleep_state="awake"} 1.0', b'sleep_state="awake"} 0.0')
    assert not (await report_of(text)).awake


async def test_the_simulated_servers_are_read_too() -> None:
    report = await report_of(render(SimServer("s", profile="instant")))
    assert report.awake
    assert report.kv_tokens is not None
    assert report.kv_tokens > 0
    assert (report.steps, report.step_tokens, report.preemptions, report.prompt_tokens) == (0,) * 4


def test_hidden_load_is_what_is_not_ours_and_fades() -> None:
    report = EngineReport(at_s=100.0, running=7, waiting=3, known_requests=4)
    assert report.hidden_requests(100.0) == report.hidden_requests(105.0) == 6.0
    assert report.hidden_requests(110.0) == 3.0
    assert report.hidden_requests(115.0) == report.hidden_requests(1e9) == 0.0
    assert EngineReport(at_s=0.0, running=2, known_requests=5).hidden_requests(0.0) == 0.0


async def test_no_count_of_all_engines_is_more_than_json_knows() -> None:
    """Each series may be plausible, and all of them together not."""
    series = b"".join(
        b'vllm:num_requests_running{engine="%d"} 9e17\n' % number for number in range(40)
    )
    report = await report_of(series)
    assert report.running == VALUE_MAX
    orjson.dumps(report.running + report.waiting)
