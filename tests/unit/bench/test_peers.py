"""The peers benchmark's pure parts: who is asked for, what is played, what is shown."""

from dataclasses import replace

import orjson
import pytest

from penstock.bench.client import Answer
from penstock.bench.overhead.answers import content_of
from penstock.bench.peers.cell import Cell, Sample, look_at
from penstock.bench.peers.cli import peers_table
from penstock.bench.peers.field import RULES, Peer, UnknownPeer
from penstock.bench.peers.workload import Prompt, Workload
from penstock.bench.routing.trace import Arrival, UnknownFormat, speedup
from penstock.bench.sim.profiles import GPUS
from penstock.bench.sim.prompt import Prompt as SimPrompt

WORKLOAD = Workload("shared_prefix", "70b-4xh100", 4, 0.6, 60.0, 1)


def test_a_peer_is_a_name_and_a_rule_of_its_own() -> None:
    assert Peer.parsed("haproxy") == Peer("HAProxy", "leastconn")
    assert Peer.parsed(" smg:cache_aware").label == "smg cache_aware"
    with pytest.raises(UnknownPeer, match=r"no such peer: traefik; there are penstock, nginx"):
        Peer.parsed("traefik")
    with pytest.raises(UnknownPeer, match=r"nginx has no rule magic; there are least_conn"):
        Peer.parsed("nginx:magic")


def test_every_kind_has_a_rule() -> None:
    assert all(RULES.values())


@pytest.mark.parametrize("tokens", [20, 300, 20_000])
def test_a_prompt_has_as_many_tokens_as_its_arrival(tokens: int) -> None:
    prompt = Prompt.of(Arrival(1.5, tokens, 4), "salt")
    assert SimPrompt.from_messages(prompt.messages).tokens == tokens


def test_equal_blocks_are_equal_text_and_all_else_is_not() -> None:
    one, two, other = (
        Prompt.of(Arrival(at_s, 1_300, 4, prefix), salt)
        for at_s, prefix, salt in ((1.0, (7, 8), "a"), (2.0, (7, 8), "a"), (2.0, (7, 8), "b"))
    )
    shared = 2 * 512 * 4
    assert one.text[:shared] == two.text[:shared]
    assert one.text[shared:] != two.text[shared:]
    assert one.text[:20] != other.text[:20]
    assert one.text[:2_048] != one.text[2_048:4_096]


def test_the_session_travels_by_each_proxys_header() -> None:
    headers = Prompt.of(Arrival(0.0, 10, 1, (), "s-1"), "").headers
    assert headers["x-session-id"] == headers["x-smg-routing-key"] == "s-1"
    assert "x-session-id" not in Prompt.of(Arrival(0.0, 10, 1), "").headers


def test_the_answer_is_compared_by_its_text() -> None:
    prompt = Prompt.of(Arrival(0.0, 10, 3), "")
    assert orjson.loads(prompt.body)["max_tokens"] == 3
    words = [{"choices": [{"delta": {"content": prompt.answer}}]}, {"choices": []}]
    body = b"".join(b"data: %b\n\n" % orjson.dumps(each) for each in words)
    assert content_of(b": ping\n\n" + body + b"data: [DONE]\n\n") == prompt.answer
    assert content_of(body) is None
    assert content_of(b'data: {"error": {}}\n\ndata: [DONE]\n\n') is None
    assert content_of(b"data: what\n\ndata: [DONE]\n\n") is None


@pytest.mark.parametrize("name", ["skewed", "shared_prefix", "agentic"])
def test_a_workload_lasts_as_long_and_is_as_dense_as_asked(name: str) -> None:
    workload = replace(WORKLOAD, name=name)
    arrivals = workload.arrivals()
    assert arrivals == workload.arrivals()
    assert 0.0 <= arrivals[0].at_s < 5.0
    assert 50.0 < arrivals[-1].at_s < 60.0
    assert max(each.output_tokens for each in arrivals) == 32
    assert all(len(each.prefix) * 512 <= each.prompt_tokens for each in arrivals)
    profile = GPUS[workload.profile]
    assert workload.load / speedup(arrivals, profile, 4, workload.load) == pytest.approx(
        0.6, rel=0.1
    )


def test_a_workload_of_next_to_nothing_is_told() -> None:
    with pytest.raises(UnknownFormat, match=r"skewed: \d requests in"):
        replace(WORKLOAD, name="skewed", length_s=0.1).arrivals()


def cell(ttft_s: float, faults: dict[str, int] | None = None, peer_core: float = 0.3) -> Cell:
    return Cell(
        {"ttft_mean_s": ttft_s, "goodput": 1.0} if ttft_s else {},
        [0.4, 0.6],
        faults or {},
        10,
        2.0,
        {"peer": peer_core, "fleet": 0.2, "client": 0.2},
        1.0,
        [ttft_s / 2, ttft_s] if ttft_s else [],
    )


def test_the_table_tells_who_was_not_whole_and_who_did_not_run() -> None:
    ours, others, gone = (Peer.parsed(text) for text in ("penstock", "smg", "envoy"))
    text = peers_table(
        {ours: [cell(0.2), cell(0.4)], others: [cell(0.9, {"status 503": 2}, 0.97)]},
        {gone: "not installed"},
        {ours: 60.0, others: 70.0},
    )
    lines = text.splitlines()
    assert lines[2].startswith("| penstock token_cost | 1.00 to 1.00 | 225 | 400 | 300 | - |")
    assert lines[2].endswith("| 40 to 60 | 2.00 | 30 | 60 | 20 | 0 |")
    assert lines[3].startswith("| smg power_of_two | 4.50 | 675 | 900 | 900 | - |")
    assert lines[3].endswith("| 2 x status 503 |")
    assert lines[4] == "| Envoy LEAST_REQUEST | did not run: not installed |"
    assert lines[5:] == ["", "Saturated: smg power_of_two, the peer at 97% of a core."]


def replayed(prompt: Prompt, events: list[tuple[float, str]], *, ended: bool = True) -> Sample:
    """A sample whose events came at these times and that was due at 10 s."""
    answer, sample = Answer(), Sample(prompt)
    answer.status, answer.ended = 200, ended
    for at_s, words in events:
        for word in words.split("|"):
            event = {"choices": [{"index": 0, "delta": {"content": word}}]}
            answer.body += b"data: %b\n\n" % (
                orjson.dumps(event) if word != "[DONE]" else b"[DONE]"
            )
        answer.reads.append((at_s, len(answer.body)))
    look_at(sample, answer, 10.0)
    return sample


def test_an_answer_is_timed_by_its_reads_from_when_it_was_due() -> None:
    prompt = Prompt.of(Arrival(0.0, 10, 4), "")
    half = len(prompt.answer) // 2
    first, second = prompt.answer[:half], prompt.answer[half:]
    events = [(10.5, ""), (11.0, first), (13.0, second + "|" + "[DONE]")]
    sample = replayed(prompt, events)
    assert sample.fault == ""
    assert sample.ttft_s == pytest.approx(1.0)  # the first event has no text
    assert sample.gaps_s == pytest.approx([2.0, 0.0])  # two events came together
    assert sample.end_s == pytest.approx(3.0)
    assert replayed(prompt, events, ended=False).fault == "cut"
    assert replayed(prompt, events[:2]).fault == "not whole"
