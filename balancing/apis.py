"""Which members of a body each API reads, of those that decide a charge, a limit or a route.

They are the names in vLLM 0.32's request models. What belongs to another API is not read: a chat
with `max_output_tokens` has no limit, because vLLM does not see one.
"""

from dataclasses import dataclass
from typing import Final

from penstock.balancing.batches import CHAT_BATCH, RANKING

CHAT: Final = "/v1/chat/completions"
COMPLETIONS: Final = "/v1/completions"
RESPONSES: Final = "/v1/responses"
# vLLM's path of token ids, for its disaggregated serving. It has `sampling_params` for members that
# others have at the top.
GENERATE: Final = "/inference/v1/generate"


@dataclass(frozen=True, slots=True)
class Api:
    """The members of one API.

    `parts`: of the prompt, in the order in which chat templates use them. `prompts`: the part that
    may be a list of prompts. `lengths`: the limits of an answer. The first that is given counts,
    and the last is the one that servers of all ages know. `choices`: it reads `n` and `min_tokens`.
    `cuts`: it reads `truncate_prompt_tokens`.
    """

    parts: tuple[str, ...] = ()
    prompts: str = ""
    lengths: tuple[str, ...] = ()
    choices: bool = False
    cuts: bool = False


_MESSAGES: Final = ("tools", "system", "messages")
_CHAT: Final = ("max_completion_tokens", "max_tokens")
_POOLED: Final = Api(("messages", "input"), "input", cuts=True)
_APIS: Final = {
    CHAT: Api(("tools", "messages"), "", _CHAT, choices=True, cuts=True),
    CHAT_BATCH: Api(("messages",), "", _CHAT, choices=True),
    COMPLETIONS: Api(("prompt",), "prompt", ("max_tokens",), choices=True, cuts=True),
    GENERATE: Api(("token_ids",), "token_ids", ("max_tokens",), choices=True),
    RESPONSES: Api(("tools", "instructions", "input"), "", ("max_output_tokens",)),
    "/v1/messages": Api(_MESSAGES, "", ("max_tokens",)),
    "/v1/messages/count_tokens": Api(_MESSAGES),
    "/tokenize": Api(("tools", "messages", "prompt")),
    **dict.fromkeys(("/v1/embeddings", "/pooling", "/classify"), _POOLED),
    **dict.fromkeys(RANKING, Api(cuts=True)),
}
_NONE: Final = Api()


def api_of(path: str) -> Api:
    """What the API of a path reads. Nothing where the path has none of these members."""
    return _APIS.get(path, _NONE)
