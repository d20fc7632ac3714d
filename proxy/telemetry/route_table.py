"""The metric families of routes: canaries, adapters, labels and mirrors."""

from typing import Final

from penstock.proxy.telemetry.family import Family

ROUTE_FAMILIES: Final = {
    "route_requests": Family(
        "counter",
        ("route", "target"),
        "requests",
        "Finished requests that matched a route, by the pool and model that they went to last.",
        "While weights move: do the targets get their shares? A fall-back that gets requests says"
        " that the target cannot serve.",
    ),
    "adapter_loads": Family(
        "counter",
        ("pool", "result"),
        "loads",
        "Loads of adapters that routes name, which backends were asked for.",
        "When clients of an adapter get 503: are loads refused? The log says by whom, and why.",
    ),
    "canary_percent": Family(
        "gauge",
        ("route",),
        "percent",
        "Share of a route's requests that its canary gets.",
        "While a new version takes over: 0 after it was rolled back, 100 once it has everything.",
    ),
    "canary_stage": Family(
        "gauge",
        ("route", "stage"),
        "always 1",
        "Where a canary stands.",
        "Alert on `rolled_back`: the new version was worse, and `penstock canary status` says why.",
    ),
    "labels": Family(
        "counter",
        ("result",),
        "requests",
        "Requests that needed a label, by where it came from or why there was none.",
        "When labels seem to do nothing: is the classifier asked, and does it answer in time?",
    ),
    "classifier_seconds": Family(
        "histogram",
        (),
        "seconds",
        "Time until the classifier had answered a question, or until that had failed.",
        "While you choose `classifier.deadline_ms`, and when `failed` rises.",
    ),
    "mirror_requests": Family(
        "counter",
        ("route", "result"),
        "requests",
        "Requests of a route with a mirror that were to be copied, by what became of the copy.",
        "When a new engine gets copies: how many of them does it answer?",
    ),
    "mirror_ends": Family(
        "counter",
        ("route", "result"),
        "requests",
        "Requests with a limit for their answer, by which of original and copy was cut by it.",
        "Do the answers of the mirror end where those of the target do?",
    ),
    "mirror_first_token_ratio": Family(
        "histogram",
        ("route",),
        "ratio",
        "Time to the first token of a copy over that of its original, each from the moment in which"
        " it was sent to its backend.",
        "Is the mirror's engine slower? Above 1 it is.",
    ),
    "mirror_tokens_ratio": Family(
        "histogram",
        ("route",),
        "ratio",
        "Tokens of the answer to a copy over those of its original, where both are counted.",
        "Does the mirror answer at other lengths?",
    ),
}
