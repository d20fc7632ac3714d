"""What a request waits for, in one word. Operators read these words, so they stay as they are."""

from enum import StrEnum


class Lack(StrEnum):
    """What there is none of. The first ones are limits of the backend that was chosen for it."""

    PROMPTS = "prompts"  # it still has other prompts to prefill
    SEQUENCES = "sequences"  # it runs as many streams as it can
    KV_CACHE = "kv_cache"  # its cache has no room for the prompt and all answers
    ANSWERS = "answers"  # the flow's running answers could outgrow the cache
    REQUESTS = "requests"  # it or its pool has all the requests that it may have (`max_requests`)
    GIANT = "giant"  # it is left to a request with a great many choices
    GIANTS = "giants"  # this is such a request, and enough of them run
    LONG = "long_prompts"  # it takes a backend for long, and its flow has enough such requests
    STREAMS = "slow_streams"  # it takes long, and streams of a higher class are slow there
    CLASS = "class"  # one of a higher class waits that must not be passed
    TURN = "turn"  # others go first
    BACKEND = "backend"  # no backend can serve it now
    ADAPTER = "adapter"  # no backend has loaded its adapter yet, and one does so now
