"""Reads what a request wants from its path, head and body.

Reading is pure. It looks at the few fields that routing and budgets need, as the path's API reads
them (`apis.py`). It refuses a body that is not a JSON object, and such a field in an odd form.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from penstock.balancing.apis import GENERATE, RESPONSES, Api, api_of
from penstock.balancing.ask import Ask
from penstock.balancing.batches import BATCHES
from penstock.balancing.body_edits import answer_limits, usage_options
from penstock.balancing.field_scan import FieldScan
from penstock.balancing.field_values import NAME_BYTES_MAX, NO_FIELD, boolean, integer, string
from penstock.balancing.fields import Fields, read_sampling
from penstock.balancing.forms import MalformedAsk, boundary_of, model_at, model_span
from penstock.balancing.labels import conversation_of
from penstock.balancing.media import media_blocks, tokens_of_bytes
from penstock.balancing.members import NoObject, Places, PlacesFound, members, names_of
from penstock.balancing.outline import LARGE_BYTES, Steps, finished
from penstock.balancing.output_length import PRIOR_TOKENS, OutputLength
from penstock.balancing.prefix_cache.blocks import large_text_blocks, text_blocks
from penstock.balancing.prompts import (
    OF_MESSAGES,
    Prompt,
    embedded_tokens,
    reading_prompt,
    text_prompt,
)
from penstock.balancing.session_key import SessionKeys
from penstock.balancing.tokens import NOTHING, Measure, TokenEstimator
from penstock.balancing.wants import media_needs, wants_of

Headers = Sequence[tuple[bytes, bytes]]

# Their bodies are multipart forms. All other paths take JSON only, whatever the content type says:
# what a backend may read as JSON is read here, too.
FORMS: Final = frozenset({"/v1/audio/transcriptions", "/v1/audio/translations"})
# More tokens than any context holds. A client's number must not lengthen a timeout without limit.
COUNT_MAX: Final = 16_777_216
# The most prompts of a request, and the most choices of each. It is the most choices that vLLM
# makes (VLLM_MAX_N_SEQUENCES), and far more prompts than clients send at once.
PROMPTS_MAX: Final = 16_384
_NOT_GIVEN: Final = (b"", b"null")
# As in the paths of stored responses. vLLM's own ids have 37 characters.
_RESPONSE_ID: Final = re.compile(r"[A-Za-z0-9_\-]{1,128}")
ODD_RESPONSE_ID: Final = (
    "`previous_response_id` must be 1 to 128 letters, digits, '_' or '-': the id of a response."
)
# vLLM takes it for the id of the response, and puts the response in the place of another one.
CHOSEN_ID: Final = "`request_id` cannot be chosen here: the server makes the id of a response."

_fields: Final = msgspec.json.Decoder(Fields)


@dataclass(frozen=True, slots=True)
class Work:
    """What the requests of a path ask of a backend.

    `generates`: it has decode tokens, not only prefill. `engine`: an engine works on it. The
    API server answers other paths alone. `streams`: with `stream` it may get an event stream.
    """

    generates: bool = False
    engine: bool = True
    streams: bool = False


GENERATION: Final = Work(generates=True, streams=True)
PREFILL_ONLY: Final = Work()
NO_ENGINE: Final = Work(engine=False)


class Reader:
    """Reads requests, with what all of them share."""

    def __init__(
        self,
        estimator: TokenEstimator,
        *,
        outputs: OutputLength | None = None,
        sessions: SessionKeys | None = None,
        prefixes: bool = False,
        caps: bool = False,
        wants: bool = False,
        labels: bool = False,
    ) -> None:
        """`outputs` predicts how long answers will be. `sessions`: where session keys are, if any
        are read; for `wants`, what routes ask for, it reads `WantedFields`. `prefixes`: a policy
        needs the blocks of the text. `caps`: answers may be cut. `labels`: a route asks for one."""
        self._estimator = estimator
        self._outputs = outputs
        self._sessions = sessions
        self._prefixes = prefixes
        self._caps = caps
        self._wants = wants
        self._labels = labels
        self._scan = FieldScan(_fields if sessions is None else sessions.decoder)

    def glance(
        self, path: str, headers: Headers, body: bytes, work: Work, tenant: str, client: str
    ) -> Ask | None:
        """Read a usual request in one turn: no body, or a small JSON body of one text or more.

        `client`: the tenant, or else the address. None: `reading` must read it. Raises
        MalformedAsk when the body is not a JSON object.
        """
        if not body:
            return self._unparsed_ask(path, headers, body, work, tenant, client)
        if len(body) > LARGE_BYTES or path in FORMS or path in BATCHES:
            return None
        found = self._scan.glance(body, views=path in OF_MESSAGES)
        if found is None:
            return None
        fields, may_name, places = found
        prompt = text_prompt(path, fields, body, may_name=may_name)
        if prompt is None:
            return None
        ask = self._ask(path, headers, fields, prompt, work, tenant, client, places)
        if self._prefixes and work.generates and prompt.batch.prompts == 1:
            ask.add_blocks(text_blocks(_root_of(fields), prompt.parts, ask.prompt_tokens))
        return ask

    def reading(
        self, path: str, headers: Headers, body: bytes, work: Work, tenant: str, client: str
    ) -> Steps[Ask]:
        """Read any request. Between the steps other work may run.

        Steps would be the largest cost of usual requests, so `glance` has none.
        """
        boundary = boundary_of(headers) if path in FORMS else None
        if not body or boundary is not None:
            ask = self._unparsed_ask(path, headers, body, work, tenant, client)
            span = (yield from model_span(body, boundary)) if body and boundary else None
            ask.model = model_at(body, span)
            if span is not None:
                ask.places = [(b"model", *span)]
            return ask
        found = yield from self._scan.steps(body, views=path in OF_MESSAGES)
        fields, may_name, places = found
        if path in FORMS:
            places = ()  # it is no form: nothing can be put in it
        prompt = yield from reading_prompt(path, fields, body, may_name=may_name)
        ask = self._ask(path, headers, fields, prompt, work, tenant, client, places)
        wants = ask.wants
        if wants is not None and prompt.media_parts:
            needs = yield from media_needs(prompt.parts)
            wants.needs |= needs
        if self._prefixes and work.generates and prompt.batch.prompts == 1:
            yield from self._adding_blocks(ask, fields, prompt)
        return ask

    def read(
        self,
        path: str,
        headers: Headers,
        body: bytes,
        work: Work,
        *,
        tenant: str = "",
        client: str = "",
    ) -> Ask:
        """Read any request in one turn, where nobody waits."""
        asked = self.glance(path, headers, body, work, tenant, client)
        return asked or finished(self.reading(path, headers, body, work, tenant, client))

    def _ask(
        self,
        path: str,
        headers: Headers,
        fields: Fields,
        prompt: Prompt,
        work: Work,
        tenant: str,
        client: str,
        places: Places,
    ) -> Ask:
        """What is wanted, but for the blocks. Raises MalformedAsk."""
        api = api_of(path)
        if path == GENERATE:
            read_sampling(fields)
        batch, media_parts, estimator = prompt.batch, prompt.media_parts, self._estimator
        if batch.prompts > PROMPTS_MAX:
            raise MalformedAsk(f"A request may have at most {PROMPTS_MAX:,} prompts.")
        if tenant and path == RESPONSES and fields.request_id is not NO_FIELD:
            raise MalformedAsk(CHOSEN_ID)
        model = string("model", fields.model) or None
        measured = _measured(estimator, prompt)
        tokens = batch.token_ids or estimator.estimate(model, measured, media_parts, None, client)
        response_id = _response_of(path, fields)
        cuts, cut_tokens = _cut(path, api, fields)
        if cuts or response_id is not None or not batch.told:  # the backend counts other tokens
            measured, tokens = NOTHING, min(tokens, (cut_tokens or tokens) * batch.prompts)
        embedded = embedded_tokens(path, fields, places)
        if embedded:
            measured, tokens = NOTHING, tokens + embedded
        max_tokens = _max_tokens_of(api, fields)
        expected, outputs = PRIOR_TOKENS, self._outputs
        if outputs is not None:
            expected = outputs.expect(client, model, path, max_tokens)
        ask = Ask(path, model, tokens)
        ask.measured, ask.media_parts = measured, media_parts
        ask.prompts, ask.choices = batch.prompts, _choices_of(api, fields)
        ask.max_tokens = max_tokens
        if self._caps:
            ask.answer_limits = answer_limits(api, fields)
        ask.stream = work.streams and boolean("stream", fields.stream)
        ask.session = self._session(headers, fields, tenant)
        ask.tenant, ask.client = tenant, client
        ask.response_id = response_id
        ask.reads_cache = _reads_cache(path, api, fields)
        # Whether a prompt longer than the model's context is refused, unless it may be cut.
        refuses_long = bool(api.lengths) and path not in BATCHES
        ask.uncut = refuses_long and not (media_parts or cuts or embedded)
        ask.generates, ask.engine = work.generates, work.engine
        ask.output_tokens = expected if work.generates else 0.0
        ask.service_tier = string("service_tier", fields.service_tier)
        ask.background = path == RESPONSES and boolean("background", fields.background)
        if ask.stream and api.choices:
            ask.usage_options = usage_options(fields.stream_options)
        ask.places = places
        ask.wants = wants_of(fields) if self._wants else None
        if self._labels and ask.wants is not None:
            ask.wants.conversation = conversation_of(path, fields)
        return ask

    def _unparsed_ask(
        self, path: str, headers: Headers, body: bytes, work: Work, tenant: str, client: str
    ) -> Ask:
        """What is wanted by a request whose body is a form or empty, but for the form's model."""
        return Ask(
            path,
            prompt_tokens=tokens_of_bytes(body),
            generates=work.generates,
            engine=work.engine,
            session=self._session(headers, None, tenant),
            tenant=tenant,
            client=client,
            response_id=_response_in(path),
            output_tokens=PRIOR_TOKENS if work.generates else 0.0,
        )

    def _session(self, headers: Headers, fields: Fields | None, tenant: str) -> str | None:
        """The session key, distinct from equal keys of other tenants (names hold no blanks)."""
        key = self._sessions.read(headers, fields) if self._sessions is not None else None
        return f"{tenant} {key}" if tenant and key else key

    def _adding_blocks(self, ask: Ask, fields: Fields, prompt: Prompt) -> Steps[None]:
        """Give a prompt of any size its blocks, with media or without."""
        root, estimator = _root_of(fields), self._estimator
        if prompt.media_parts:
            measured = _measured(estimator, prompt)
            parts = [bytes(part) for part in prompt.parts]
            blocks = yield from media_blocks(
                root, parts, prompt.size_bytes, ask.model, measured, estimator, ask.client
            )
        elif prompt.size_bytes <= LARGE_BYTES:
            blocks = text_blocks(root, prompt.parts, ask.prompt_tokens)
        else:
            blocks = yield from large_text_blocks(root, prompt.parts, ask.prompt_tokens)
        ask.add_blocks(blocks)


class _Named(msgspec.Struct):
    model: msgspec.Raw = NO_FIELD


_named: Final = msgspec.json.Decoder(_Named)


def reading_unseen(path: str, body: bytes, tenant: str, client: str) -> Steps[Ask]:
    """A request that goes to the first pool. Only its model is read: that of a JSON object."""
    model, noted = None, PlacesFound(names_of(_Named))
    if body:
        try:
            model = string("model", (yield from members(body, _named, noted=noted)).model)
        except (NoObject, MalformedAsk):
            model = None  # it names none
    ask = Ask(
        path,
        prompt_tokens=tokens_of_bytes(body),
        generates=False,
        engine=False,
        first_pool=True,
        tenant=tenant,
        client=client,
    )
    ask.named = model
    return ask


def _max_tokens_of(api: Api, fields: Fields) -> int | None:
    """The client's own limit. Of several names the first that is given counts."""
    for name in api.lengths:
        tokens = integer(name, getattr(fields, name))
        if tokens is not None and tokens > 0:  # some servers go on to the next one after a 0
            return min(tokens, COUNT_MAX)
    return None


def _choices_of(api: Api, fields: Fields) -> int:
    if fields.n is NO_FIELD or not api.choices:
        return 1
    choices = integer("n", fields.n) or 1
    if choices > PROMPTS_MAX:
        raise MalformedAsk(f"`n` may be at most {PROMPTS_MAX:,}.")
    return max(1, choices)


def _reads_cache(path: str, api: Api, fields: Fields) -> bool:
    """Whether the engine may take the beginning of the prompt from its cache.

    It cannot if the client asks for the probabilities of the prompt's tokens, which a cache does
    not hold (vLLM, `Request.get_skip_reading_prefix_cache`).
    """
    if not api.choices:
        return True
    if fields.prompt_logprobs is not NO_FIELD and bytes(fields.prompt_logprobs) != b"null":
        return False
    if fields.echo is NO_FIELD or not boolean("echo", fields.echo):
        return True
    wanted = fields.top_logprobs if path in OF_MESSAGES else fields.logprobs
    return bytes(wanted) in _NOT_GIVEN


def _cut(path: str, api: Api, fields: Fields) -> tuple[bool, int | None]:
    """Whether too long prompts may be shortened instead of refused, and to how many tokens each."""
    if path == RESPONSES:
        truncation = bytes(fields.truncation)
        return truncation not in _NOT_GIVEN and truncation != b'"disabled"', None
    if fields.truncate_prompt_tokens is NO_FIELD or not api.cuts:
        return False, None
    tokens = integer("truncate_prompt_tokens", fields.truncate_prompt_tokens)
    return tokens is not None, tokens if tokens is not None and tokens > 0 else None


def _root_of(fields: Fields) -> bytes:
    """What separates caches: models, adapters (models by name) and salts."""
    model, salt = bytes(fields.model), bytes(fields.cache_salt)
    return model[:NAME_BYTES_MAX] + b"\n" + salt[:NAME_BYTES_MAX]


def _measured(estimator: TokenEstimator, prompt: Prompt) -> Measure:
    batch = prompt.batch
    if batch.token_ids:
        return NOTHING
    measured = estimator.measure(prompt.texts)
    if batch.again:
        pieces, wide = estimator.measure([batch.again])
        more = batch.prompts - 1
        measured = measured[0] + more * pieces, measured[1] + more * wide
    return measured


def _response_in(path: str) -> str | None:
    """The id in `/v1/responses/{id}` and in paths below it."""
    return path.split("/")[3] if path.startswith("/v1/responses/") else None


def _response_of(path: str, fields: Fields) -> str | None:
    """The id of the response that a request refers to. Raises MalformedAsk."""
    if path != RESPONSES:
        return _response_in(path)
    found = string("previous_response_id", fields.previous_response_id)
    if found is not None and not _RESPONSE_ID.fullmatch(found):
        raise MalformedAsk(ODD_RESPONSE_ID)
    return found
