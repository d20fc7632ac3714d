"""What the labels of all metric families hold, for the metrics reference of the documentation."""

from typing import Final

# What each label holds, and how many values it can have.
LABELS: Final = {
    "pool": "The name of a pool in the configuration (at most 256). Empty when a request reached no"
    " pool.",
    "backend": "The name of a backend in the configuration. Empty when a request reached no"
    " backend.",
    "code": "The HTTP status of the answer. 499: the client left before the answer began. `4xx`,"
    " `5xx` and so on: statuses that are not registered. Of these 520 to 530 are told apart.",
    "state": "`starting`, `ready`, `suspect`, `ejected` or `warming`.",
    "admin_state": "`ready`, `drain` or `maint`.",
    "result": "`hit`: the backend of the session, or of the stored response, served the request."
    " `spill`: another backend did. `miss`: the pool's policy uses session keys, and the request"
    " had no key or a new one. Of spans: `sent`: the receiver took them. `refused`: it did not, and"
    " would not. `dropped`: it was too slow, or could not be reached. Of copies: `ok`: the answer"
    " is whole. `refused`: a status below 500 other than 200. `failed`: the answer broke, had"
    " another status, or there was no connection. `late`: it took too long. `left`: the client of"
    " its original left. `ended`: by a reload, a drain or overload. `no_room`, `no_backend`: it was"
    " not made. Of their ends: `same`: both were cut, or none. `original_cut`, `copy_cut`: only"
    " this one was. Of loads: `ok`: the backend lists the adapter. `failed`: it does not."
    " Of labels: `asked`: the classifier answered. `cached`: it did so before. `failed`: it gave"
    " none in time. `skipped`: it was not asked, because too many questions were under way, it"
    " failed again and again, or there was no question.",
    "phase": "`body`: before the body was whole. `queued`: before a backend was chosen. `connect`:"
    " while connecting to it. `prefill`: before the first token. `decode`: after it. `unsent`: the"
    " whole answer was written to the connection, but the client did not read it all.",
    "priority": "A class of `admission.classes`. `0` where no class counts.",
    "waited": "`yes`: it waited in the proxy. `no`: it was sent at once.",
    "route": "The name of a route in the configuration.",
    "target": "A pool; `pool/model` where the route sends another model than was asked for."
    " `refused`: the route refused it. At most 256 values.",
    "stage": "`running`, `held` (evidence lacks), `rolled_back`, `aborted` or `promoted`.",
    "outcome": "`worse`: it was ejected. `no_worse`: it is as good as its peers. `unclear`: 5,000"
    " requests, or an hour, did not show either.",
    "tenant": "The name of a tenant in the configuration.",
    "model": "A model that its backend lists. `other`: any other name, and models"
    " beyond the limits: 256 for tenants; 16 at one backend; in a pool, one at each backend and"
    " 1,024 more.",
    "action": "`max_tokens`: the answer was given fewer tokens. `prompt_tokens`: the prompt was too"
    " long for now. `fall_back`: another pool took it.",
    "kind": "Of tokens: `prompt`, `cached` (a part of `prompt`) or `completion`. Of a bottleneck: a"
    " kind of docs/verdict.md.",
    "prompt": "The most tokens of the prompt, as penstock estimates them: `1k` (1,024), `8k`"
    " (8,192), `32k` (32,768) or `more`.",
    "work": "`prefill` or `decode`.",
    "use": "`listen`: shown to clients of the data port. `client`: shown to the backends of the"
    " pool.",
    "version": "The version of penstock.",
    "build": "`compiled`, or `interpreted`, which costs up to two and a half times the CPU.",
    "source": "`file`, `dns` or `kubernetes`.",
    "slo": "`ttft_p95` and the like, `availability`, `error_rate` or `goodput`. `pool` and"
    " `priority` are `*` where it is for all.",
    "window": "`5m`, `30m`, `1h`, `6h` or `3d`: those that are within `window_s`.",
    "verdict": "`good` or `bad`.",
}
# The values of the label `reason`. Each family has a list of its own.
REASONS: Final = {
    "attempts": "`ok`: the answer was passed on, whatever its status. `connect`, `refused`: no"
    " connection. `ports`: no local port was left. `reset`, `cut`, `dropped`: the connection"
    " ended before or during the answer. `timeout`: `timeouts.first_byte_s` was over."
    " `hung`: probes found that it hangs, and the request moved on. `status`: 502 or 504."
    " `busy`: 429 or 503. `internal`: 500. `draining`: the backend shuts down. `aborted`: it"
    " gave the request up. `engine_dead`: its engine died. `malformed`: no valid HTTP."
    " `empty`, `no_events`: a stream without a token. `refusing`: a 4xx that other backends"
    " do not give, or a refusal of the pool's key. `not_here`: it does not hold the stored"
    " response. `out_of_time`: `timeouts.total_s` was over. `client_timeout`: the client's"
    " own time was over. `poison`: refused because engines died of this request."
    " `over_budget`: not retried in its pool, because too many requests were being retried"
    " there. After the first token also `idle`, `unfinished`, `error_event`, `abort` and"
    " `total`, as in `penstock_stream_failures_total`. At most 256 values.",
    "backend_attempts": "As of `penstock_attempts_total`.",
    "backend_routed": "`cost`: the policy preferred it. `only`: no other backend could serve."
    " `affinity`: it is the backend of the session, or of the stored response. `spill`: the"
    " session's own backend was not fit, over its bound or tried already.",
    "backend_engine_waiting_by_reason": "`capacity`: for room in the KV cache or the batch."
    " `deferred`: for something else, such as a cache that is fetched.",
    "stream_failures": "`reset`, `cut`, `dropped`, `malformed`: the connection ended or its"
    " bytes were no valid HTTP. `idle`: no byte for `timeouts.idle_s`. `hung`: probes found"
    " that its backend hangs. `unfinished`: it ended without its last event. `no_events`: it"
    " sent bytes but no events. `error_event`, `abort`: the backend gave up. `total`:"
    " `timeouts.total_s` was over. `refused`: the backend ended the stream with an error that"
    " the request itself caused. At most 256 values.",
    "shed": "`connections`, `bodies`, `memory`, `lag` or `descriptors`. `unread`: an answer that"
    " its client did not read was given up. `wait`: its first token would have come too late for"
    " its class, `deadline`: for the time that its client allows. `budget`: its tenant has used up"
    " a budget. `max_requests`, `busy`: the backends take no more, by the configuration or by their"
    " own answers.",
    "overload": "`lag` or `memory`.",
}
