"""Every metric family: its kind, unit and labels, what it is, and when to look at it.

The HELP texts of /metrics and the metrics reference of the documentation come from this table.
"""

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

_HEAD: Final = re.compile(r"(\w+): (\w+)(?: of (.+?))?(?: by (.+))?")


class Family(NamedTuple):
    """Describes one family. Its name gets the prefix `penstock_`. `kind`: counter, gauge, histogram
    or info."""

    kind: str
    labels: tuple[str, ...]
    unit: str
    text: str
    look: str


def _families(table: str) -> Iterator[tuple[str, Family]]:
    """Entries of `name: KIND of UNIT by LABELS`, then what it is and when to look at it. A line
    that is indented further goes on with the one before."""
    for entry in re.split(r"\n(?=\w)", table.strip()):
        head, text, look = re.sub(r"\n {5,}", " ", entry).split("\n")
        found = _HEAD.fullmatch(head)
        assert found is not None, head
        name, kind, unit, labels = found.groups(default="")
        listed = tuple(labels.split(", ")) if labels else ()
        yield name, Family(kind, listed, unit, text.strip(), look.strip())


FAMILIES: Final = dict(
    _families(
        r"""
build: info of always 1 by version, build
    The running version and build.
    After a rollout: do all instances run the same version? Is each compiled?
requests: counter of requests by pool, backend, code
    Finished requests.
    First, always: users notice the share of 5xx and 429. A single backend with many more errors
      than the others is at fault itself.
prompt_tokens: counter of tokens by pool
    Prompt tokens, as the backends reported them.
    For capacity planning: the prefill work of a pool.
completion_tokens: counter of tokens by pool
    Generated tokens, as the backends reported them.
    For capacity planning: the decode work of a pool.
cached_tokens: counter of tokens by pool
    Prompt tokens that the backends found in their prefix cache. Backends report them only if they
      are started with --enable-prompt-tokens-details.
    When the time to first token grows: divide it by `penstock_prompt_tokens_total`. A falling
      share means that sessions lose their cache.
request_duration_seconds: histogram of seconds by pool
    Time from the head of a request to the end of its answer.
    With long answers it is mostly decode time. Compare it with itself a day before.
time_to_first_token_seconds: histogram of seconds by pool
    Time from the head of a streamed request to its first token.
    Users feel this figure. When it grows, look at `penstock_backend_queued_prefill_tokens`.
time_to_first_token_by_prompt_seconds: histogram of seconds by pool, prompt
    Time from the head of a streamed request to its first token, by how long its prompt is.
    When the time to first token grows: do only long prompts wait?
inter_token_latency_seconds: histogram of seconds by pool
    Time between two events of a stream.
    When streams stutter: compare it with `penstock_event_loop_lag_seconds`. If that is small, the
      engines decode slowly.
backend_queued_prefill_tokens: gauge of tokens by backend
    Prompt tokens of requests without a first token yet, less what the backend's cache should
      hold.
    When the time to first token grows. One backend far above the others is slow. All of them
      high: the fleet is too small.
backend_active_decode_tokens: gauge of tokens by backend
    Prompt and generated tokens of requests that are past their first token.
    When tokens come slowly, and before a KV cache is full.
backend_requests_in_flight: gauge of requests by backend
    Requests for which the backend was chosen and that have not ended.
    While a backend drains: it is free at 0.
backend_can_serve: gauge of 0 or 1 by pool, backend
    1 when new requests may be sent to the backend.
    First, in an outage. A sum of 0 means that every request gets 503.
backend_state: gauge of 0 or 1 by backend, state
    1 for the health state of the backend, 0 for the others.
    When `penstock_backend_can_serve` is 0. `penstock status` adds the reason.
backend_admin_state: gauge of 0 or 1 by backend, admin_state
    1 for the state that the operator has set, 0 for the others.
    When a healthy backend gets no requests: somebody may have forgotten a drain.
backend_engine_running: gauge of requests by backend
    Requests in the engine's batch, as its own metrics say.
    When it is above `penstock_backend_requests_in_flight`: somebody uses the engine without this
      proxy. It can be some seconds old, and says nothing about an ejected backend.
backend_engine_waiting: gauge of requests by backend
    Requests that wait in the engine, as its own metrics say.
    When it stays above 0: the engine's KV cache or batch is full.
backend_engine_waiting_by_reason: gauge of requests by backend, reason
    Requests that wait in the engine, by what they wait for, as its own metrics say.
    When requests wait in an engine: is its KV cache or batch full, or is it something else?
backend_kv_usage_ratio: gauge of ratio, 0 to 1 by backend
    Share of the engine's KV cache in use, as its own metrics say.
    When it stays near 1: the engine makes requests wait, or preempts them.
backend_kv_capacity_tokens: gauge of tokens by backend
    Size of the engine's KV cache, as its own metrics say.
    When backends of one pool behave differently: are they configured alike?
backend_preemptions: counter of preemptions by backend
    Times that the engine took the room of a running request for another one, as its own metrics
      say.
    When tokens stop for seconds: the KV cache is too small for what is sent there.
backend_engine_prompt_tokens: counter of tokens by backend
    Prompt tokens that the engine took in, with those in its cache, as its own metrics say.
    Against `penstock_prompt_tokens_total`: does somebody use the engine without this proxy?
backend_engine_steps: counter of steps by backend
    Steps that the engine made, as its own metrics say.
    Divide the tokens below by it: that is the mean size of a step.
backend_engine_step_tokens: counter of tokens by backend
    Tokens of all these steps, of prompts and answers.
    Few tokens in each step: the GPU reads all weights for little work, and fewer backends would
      do.
backend_prefix_queries_tokens: counter of tokens by backend
    Prompt tokens that the engine looked for in its prefix cache, as its own metrics say.
    With the next one: the hit rate is their quotient.
backend_prefix_hits_tokens: counter of tokens by backend
    Prompt tokens that the engine found in its prefix cache, as its own metrics say.
    When one backend finds far less than the others: it restarted, or its sessions were moved.
backend_prefill_tokens_per_second: gauge of tokens per second by backend
    Measured speed of prefill for short prompts.
    When first tokens come late at one backend.
backend_decode_step_seconds: gauge of seconds by backend
    Measured time from one token to the next, at the usual number of held tokens.
    When tokens come slowly at one backend.
backend_slowness_ratio: gauge of ratio by backend, work
    How many times as long as the median of the others in its pool, or of some 31 of them, the
      backend takes, where that was measured lately.
    Above 1.5 for long: look at its GPU's clocks, its heat and its neighbours. Small differences
      count as 1.
backend_cold_start_seconds: gauge of seconds by backend
    Time of the last start of its server: from the first sign of it to the first token for a
      request.
    Before you scale to zero: how long will users wait? It holds the wait for a request, too.
backend_gpu_floor_seconds: counter of seconds by backend
    Time in which the backend did nothing while requests of its pool waited.
    When you pay for GPUs and users wait: growing, it shows the backend that is left out. Is it
      slow, at `max_requests`, or of another model?
backend_gpu_utilization_ratio: gauge of ratio, 0 to 1 by backend
    Mean share of time in which its GPUs computed, as `gpu_metrics_url` tells.
    Below 0.1 with requests in flight: the engine hangs or waits for something else.
backend_gpu_memory_used_bytes: gauge of bytes by backend
    Memory of its GPUs in use, as `gpu_metrics_url` tells.
    When an engine dies without a word: was the memory full?
backend_gpu_memory_free_bytes: gauge of bytes by backend
    Free memory of its GPUs, as `gpu_metrics_url` tells.
    Much of it: the engine may have a larger KV cache.
backend_attempts: counter of attempts by pool, backend, reason
    Attempts at the backend, by how they ended.
    When `penstock_attempts_total` shows failures: which backend has them?
backend_routed: counter of requests by pool, backend, reason
    Requests that ended at the backend, by why it was chosen.
    When a backend has too many or too few requests.
backend_request_duration_seconds: histogram of seconds by pool, backend, model
    Time from the head of a request to the end of its answer, by its last backend.
    Compare the backends of a pool with each other.
backend_time_to_first_token_seconds: histogram of seconds by pool, backend, model
    Time from the head of a streamed request to its first token, by its last backend.
    When first tokens come late: is it one backend, or one model?
backend_inter_token_latency_seconds: histogram of seconds by pool, backend, model
    Time between two events of a stream.
    When streams stutter: is it one backend?
attempts: counter of attempts by reason
    Attempts to have a request served, by how they ended.
    When 502 or 504 appear: the reasons say how the backends fail.
affinity: counter of requests by result
    Requests by whether the backend of their session or stored response served them.
    When the share of cached tokens falls: many spills mean that sessions move.
route_requests: counter of requests by route, target
    Finished requests that matched a route, by the pool and model that they went to last.
    While weights move: do the targets get their shares? A fall-back that gets requests says that
      the target cannot serve.
adapter_loads: counter of loads by pool, result
    Loads of adapters that routes name, which backends were asked for.
    When clients of an adapter get 503: are loads refused? The log says by whom, and why.
canary_percent: gauge of percent by route
    Share of a route's requests that its canary gets.
    While a new version takes over: 0 after it was rolled back, 100 once it has everything.
canary_stage: gauge of always 1 by route, stage
    Where a canary stands.
    Alert on `rolled_back`: the new version was worse, and `penstock canary status` says why.
labels: counter of requests by result
    Requests that needed a label, by where it came from or why there was none.
    When labels seem to do nothing: is the classifier asked, and does it answer in time?
classifier_seconds: histogram of seconds
    Time until the classifier had answered a question, or until that had failed.
    While you choose `classifier.deadline_ms`, and when `failed` rises.
mirror_requests: counter of requests by route, result
    Requests of a route with a mirror that were to be copied, by what became of the copy.
    When a new engine gets copies: how many of them does it answer?
mirror_ends: counter of requests by route, result
    Requests with a limit for their answer, by which of original and copy was cut by it.
    Do the answers of the mirror end where those of the target do?
mirror_first_token_ratio: histogram of ratio by route
    Time to the first token of a copy over that of its original, each from the moment in which it
      was sent to its backend.
    Is the mirror's engine slower? Above 1 it is.
mirror_tokens_ratio: histogram of ratio by route
    Tokens of the answer to a copy over those of its original, where both are counted.
    Does the mirror answer at other lengths?
newcomers: counter of backends by pool, outcome
    New backends that were judged beside their peers, by what became of them.
    Alert on `worse`: such a backend is ejected, and `penstock status` says why.
client_aborts: counter of requests by phase
    Requests whose client left early, by how far they were.
    Many in `prefill` mean that clients lose patience before the first token.
stream_failures: counter of streams by reason
    Streams that broke after their first token.
    When clients report incomplete answers: engines die or are killed under running streams.
shed: counter of requests by reason, priority
    Requests that were refused, and answers given up midway, because the proxy was at a limit of
      its own.
    When clients get 429 with the code `overloaded`: the reason names the limit.
degraded: counter of requests by action
    Requests of which something was cut, that were refused for their length or sent to a
      fall-back, by a step of `admission.degrade`.
    When users report short answers: how many are cut?
overhead_seconds: histogram of seconds
    Time from the last byte of a request to its sending to a backend.
    When you doubt the proxy. It includes connecting, so look at the network to the backends
      first.
event_loop_lag_seconds: histogram of seconds
    Delay of a timer that is due four times a second.
    When all streams stutter at once. Above 25 ms the proxy lacks CPU.
token_estimate_error_ratio: histogram of ratio
    Estimated prompt tokens divided by reported prompt tokens.
    When the choice of backends looks wrong. Values far from 1 are wrong estimates.
clients: gauge of connections
    Open client connections.
    When connections are refused: compare it with `limits.connections`.
tasks: gauge of tasks
    Tasks on the event loop, counted every five seconds.
    When memory grows. If it grows while `penstock_clients` does not, tasks leak.
overload: gauge of 0 or 1 by reason
    1 while new requests are refused for this reason.
    When clients get 429. Running requests go on.
queue_wait_seconds: histogram of seconds by priority
    Time that requests waited in the proxy, of those that had to wait.
    When first tokens come late: how much of it is the queue before the backends?
predicted_wait_error_ratio: histogram of ratio
    Predicted divided by true time to the first token of streams that waited in the proxy and came
      to their first token at the first attempt.
    When requests are refused too early or too late. Most far above 1: refusals that need not be.
      Most far below 1: clients wait in vain.
admitted: counter of requests by priority, waited
    Requests that admission let through to a backend.
    When first tokens come late: which share of a class had to wait? Compare it with
      `penstock_shed_total`.
queued_requests: gauge of requests by priority
    Requests that wait in the proxy for room at a backend.
    Above zero for minutes in a class that shall not wait, the fleet is too small.
queued_tokens: gauge of tokens by priority
    Prompt tokens to prefill of the requests that wait in the proxy.
    For autoscaling: work that no backend has yet.
bottleneck: gauge by pool, kind
    1 for the kind of the pool's verdict, 0 for all others.
    Alert on `penstock_bottleneck{kind!~"fine|missed"} == 1`: service levels have their own.
held_requests: gauge of requests by pool
    Requests that wait until a backend of their pool can serve (`hold_for_backend_s`).
    For autoscaling from zero: whoever starts backends needs no other signal.
held_tokens: gauge of tokens by pool
    Prompt tokens of these requests.
    For autoscaling: how many backends to start.
pressure: gauge of ratio by pool, priority
    The predicted wait of the client that would wait longest, over the wait at which its requests
      are refused.
    Before you choose steps of `admission.degrade`, and for autoscaling. At 1 refusals begin.
tenant_requests: counter of requests by tenant, model
    Requests of a tenant that a backend answered. Off loopback only with a token.
    Who sends the most?
tenant_tokens: counter of tokens by tenant, model, kind
    Tokens of a tenant's requests, as the backends counted them, or as penstock saw them where
      they did not. Off loopback only with a token.
    Whose budget must grow, and for bills. Where the backends counted, prompt tokens include the
      cached ones.
rate_limited: counter of requests by tenant
    Requests of a tenant that were refused for its budget. Off loopback only with a token.
    Whose budget is too small, or who does not heed Retry-After.
cost: counter of currency of `cost_per_hour` by pool
    What the backends of the pool cost since the start, idle or not. Off loopback only with a
      token.
    For bills. Over the sum of `penstock_prompt_tokens_total` and
      `penstock_completion_tokens_total` it is the price since the start.
cost_per_1k_tokens: gauge of currency of `cost_per_hour` by pool
    Cost of the last 10 minutes, or since the start if that is less, for 1,000 prompt and
      completion tokens of requests that ended in that time. Off loopback only with a token.
    When you compare pools, or idle hours with busy ones. Without tokens there is no sample.
config_reload_success: gauge of 0 or 1
    1 when the last configuration that was read is in use.
    After each reload. At 0 the configuration before it is still in use.
config_reload_success_timestamp_seconds: gauge of Unix time
    When the configuration in use was read.
    After a rollout of a configuration: did this instance read it?
certificate_expiry_timestamp_seconds: gauge of Unix time by use, pool
    When a certificate of penstock's own ends, with those that sign it in the same file.
    Alert two weeks before. A renewed file counts after a reload.
discovered_backends: gauge of backends by pool, source
    How many backends a pool's source has told.
    When a pool is smaller than it should be: compare it with the number that you run.
discovery_age_seconds: gauge of seconds by pool, source
    For how long a source has failed, so that its last list is in use. 0: it answers.
    Alert at some minutes: backends that came or went since are not known.
tls_handshakes_failed: counter of connections
    Connections to the data port that ended before TLS was agreed on.
    After a certificate was renewed: clients may not trust it.
access_lines_dropped: counter of lines
    Lines of the access log that were dropped because its reader was too slow.
    When requests are missing from the access log.
log_lines_dropped: counter of lines
    Lines of the log (stderr) that were dropped because nobody read it in time.
    When what you look for is missing from the log.
trace_spans: counter of spans by result
    Spans of recorded requests and their attempts, by what became of them.
    When traces are missing. With tracing all is well while only `sent` grows.
traces_capped: counter of requests
    Requests whose client asked for a trace by the sampled flag, beyond `tracing.forced_ratio` or
      `tracing.forced_per_minute`. They were not recorded.
    When a client misses its traces.
slo_compliance_ratio: gauge of ratio, 0 to 1 by pool, priority, slo
    Share of good requests over the window of the SLO (`window_s`), since the start at most.
    When a service level is reported. `docs/slo.md` says which requests are good.
slo_burn_rate: gauge of ratio by pool, priority, slo, window
    Share of bad requests, over the share that may be bad.
    At 1 the error budget lasts exactly for its time. At 14 it is gone in two of 30 days.
slo_state: gauge of 0, 1 or 2 by pool, priority, slo
    0: met. 1: warning, 80 % of a target or of the error budget is used. 2: critical, it is missed
      or used up.
    On a dashboard. `penstock status` tells the same in words.
slo_requests: counter of requests by pool, priority, slo, verdict
    Requests that count for an SLO, by whether they were good.
    The alerts of `penstock alerts` go by it: sums over replicas and restarts stay right.
"""
    )
)
