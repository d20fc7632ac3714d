"""What vLLM 0.32 reads of a body: the members of its request models that decide a charge, a limit
or a route. As there, members that a model does not have are taken and mean nothing.
"""

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

Ids = list[int] | list[list[int]] | str | list[str]
Cut = Annotated[int, Field(ge=-1, le=2**63 - 1)]
Messages = list[dict[str, Any]]


class Model(BaseModel):
    model_config = ConfigDict(extra="allow")


class StreamOptions(Model):
    include_usage: bool | None = False
    continuous_usage_stats: bool | None = False


class Chat(Model):
    model: str | None = None
    messages: Messages
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    n: int | None = 1
    min_tokens: int = 0
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    echo: bool = False
    top_logprobs: int | None = 0
    prompt_logprobs: int | None = None
    truncate_prompt_tokens: Cut | None = None


class BatchOfChats(Chat):
    messages: list[Annotated[Messages, Field(min_length=1)]] = Field(  # type: ignore[assignment]
        min_length=1
    )

    @model_validator(mode="before")
    @classmethod
    def _has_one_choice(cls, data: Any) -> Any:
        if data.get("n", 1) not in (None, 1):
            raise ValueError("n must be 1")
        return data


class Completion(Model):
    model: str | None = None
    prompt: (
        list[Annotated[int, Field(ge=0)]]
        | list[list[Annotated[int, Field(ge=0)]]]
        | str
        | list[str]
        | None
    ) = None
    prompt_embeds: bytes | list[bytes] | None = None
    max_tokens: int | None = 16
    n: int = 1
    min_tokens: int = 0
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    echo: bool | None = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    truncate_prompt_tokens: Cut | None = None

    @model_validator(mode="before")
    @classmethod
    def _has_a_prompt(cls, data: Any) -> Any:
        if data.get("prompt") in (None, "") and data.get("prompt_embeds") in (None, []):
            raise ValueError("no prompt")
        return data


class Response(Model):
    model: str | None = None
    input: str | list[dict[str, Any]]
    max_output_tokens: int | None = None
    background: bool | None = False
    stream: bool | None = False
    previous_response_id: str | None = None
    service_tier: Literal["auto", "default", "flex", "scale", "priority"] = "auto"


class Message(Model):
    model: str
    messages: Messages
    max_tokens: int = Field(gt=0)
    stream: bool | None = False


class Sampling(Model):
    n: int = 1
    max_tokens: int | None = 16
    prompt_logprobs: int | None = None


class Generate(Model):
    model: str | None = None
    token_ids: list[int] = Field(min_length=1)
    sampling_params: Sampling
    stream: bool | None = False
    stream_options: StreamOptions | None = None


class Pooled(Model):
    model: str | None = None
    input: Ids
    truncate_prompt_tokens: Cut | None = None


class Embed(Model):
    model: str | None = None
    texts: list[str] | None = None
    images: list[str] | None = None
    inputs: list[dict[str, Any]] | None = None

    @model_validator(mode="after")
    def _has_one(self) -> "Embed":
        given = [each for each in (self.texts, self.images, self.inputs) if each is not None]
        if len(given) != 1 or not given[0]:
            raise ValueError("exactly one of texts, images or inputs")
        return self


class Rerank(Model):
    model: str | None = None
    query: str | dict[str, Any]
    documents: str | dict[str, Any] | list[str | dict[str, Any]]
    truncate_prompt_tokens: Cut | None = None


class Scoring(Model):
    model: str | None = None
    query: str | list[int]
    items: list[str] | list[list[int]]


TURN: Final = '{"role":"user","content":"a river"}'
# By path: the model of its bodies, and a plain body without braces.
APIS: Final[Mapping[str, tuple[type[Model], str]]] = {
    "/v1/chat/completions": (Chat, f'"model":"m","messages":[{TURN}]'),
    "/v1/chat/completions/batch": (BatchOfChats, f'"model":"m","messages":[[{TURN}]]'),
    "/v1/completions": (Completion, '"model":"m","prompt":"a river"'),
    "/v1/responses": (Response, '"model":"m","input":"a river"'),
    "/v1/messages": (Message, f'"model":"m","messages":[{TURN}],"max_tokens":4096'),
    "/inference/v1/generate": (
        Generate,
        '"model":"m","token_ids":[1,2,3],"sampling_params":{"max_tokens":4096}',
    ),
    "/v1/embeddings": (Pooled, '"model":"m","input":["a river","a bridge"]'),
    "/pooling": (Pooled, '"model":"m","input":["a river","a bridge"]'),
    "/classify": (Pooled, '"model":"m","input":["a river","a bridge"]'),
    "/v2/embed": (Embed, '"model":"m","texts":["a river","a bridge"]'),
    "/rerank": (Rerank, '"model":"m","query":"a river","documents":["Rhine","Main"]'),
    "/generative_scoring": (Scoring, '"model":"m","query":"a river","items":["Rhine","Main"]'),
}


def _listed(value: Any) -> int:
    """How many prompts a list of them has. Token ids are one, and so is a conversation."""
    if not isinstance(value, list) or not value or not isinstance(value[0], (str, list, bytes)):
        return 1
    return len(value)


def _of_completion(read: Any) -> int:
    embeds = read.prompt_embeds
    given = (len(embeds) if isinstance(embeds, list) else 1) if embeds else 0
    return given + (_listed(read.prompt) if read.prompt is not None else 0)


def _of_embed(read: Any) -> int:
    return len(read.texts or read.images or read.inputs)


PROMPTS: Final[Mapping[type[Model], Callable[[Any], int]]] = {
    BatchOfChats: lambda read: len(read.messages),
    Completion: _of_completion,
    Pooled: lambda read: _listed(read.input),
    Embed: _of_embed,
    Rerank: lambda read: _listed(read.documents),
    Scoring: lambda read: len(read.items),
}


def tokens_of(read: Any) -> int | None:
    """The most tokens of one answer. None: the body sets no limit."""
    if isinstance(read, Chat):
        new: int | None = read.max_completion_tokens
        return new if new is not None else read.max_tokens
    if isinstance(read, Response):
        return read.max_output_tokens
    if isinstance(read, Generate):
        return read.sampling_params.max_tokens
    return read.max_tokens if isinstance(read, (Completion, Message)) else None


def choices_of(read: Any) -> int:
    """How many answers each prompt gets."""
    if isinstance(read, Generate):
        return read.sampling_params.n
    if not isinstance(read, (Chat, Completion)):
        return 1
    return 1 if read.n is None else read.n


def prompts_of(read: Any) -> int:
    counted = PROMPTS.get(type(read))
    return counted(read) if counted is not None else 1
