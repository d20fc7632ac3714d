"""The life of one generation request, from its 200 to its last byte.

Everything happens inside callbacks: the request's arrival, the end of an engine step, the
client's leaving. The 200 of a stream goes out before anything is scheduled, as vLLM's does, so
what a request suffers later (silence, an error, a cut) it suffers inside that 200.
"""

import asyncio

from penstock.bench.sim.connection import Reply
from penstock.bench.sim.dialects import Dialect, Messages, id_list
from penstock.bench.sim.engine import Sequence
from penstock.bench.sim.errors import engine_error
from penstock.bench.sim.faults import Fault, FaultKind
from penstock.bench.sim.instance import Instance, Work
from penstock.bench.sim.job import Job
from penstock.bench.sim.profiles import Profile
from penstock.bench.sim.prompt import Prompt
from penstock.bench.sim.script import Recital
from penstock.bench.sim.text import Token, Voice

_BREAKS = (
    *(FaultKind.CUT_AFTER_HEADERS, FaultKind.CUT_MID_STREAM, FaultKind.GARBAGE),
    *(FaultKind.ERROR_EVENT, FaultKind.ABORT_MID_STREAM),
)
_HANGS = FaultKind.HANG_BEFORE_HEADERS, FaultKind.HANG_AFTER_HEADERS, FaultKind.HANG_MID_STREAM
_AT_ONCE = frozenset(
    {FaultKind.CUT_AFTER_HEADERS, FaultKind.HANG_BEFORE_HEADERS, FaultKind.HANG_AFTER_HEADERS}
)
_GARBAGE = b"\x00\xff no chunk \r\n: data: {]\n\n" * 4
# Content-length of an unstreamed body that will never come.
_PROMISED_BYTES = 512
_KEEP_ALIVE = b": keep-alive\n\n"


class Choice:
    """One sequence of an answer, told by the engine's pump about each token."""

    __slots__ = ("generation", "index", "prompt", "sent", "sequence", "tokens", "voice")

    def __init__(
        self, generation: "Generation", index: int, prompt: Prompt, choice: int, stall: int | None
    ) -> None:
        self.generation, self.index, self.prompt = generation, index, prompt
        script = generation.job.script
        self.voice = Recital(script) if script is not None else Voice(prompt.text, choice)
        profile = generation.profile
        hashes = prompt.block_hashes(profile.block_tokens) if profile.prefix_caching else []
        most = generation.job.hidden_tokens + generation.job.max_tokens
        self.sequence = Sequence(prompt.tokens, most, self, stall, hashes)
        self.tokens: list[Token] = []
        self.sent = 0

    def token(self) -> None:
        self.generation.token(self)

    @property
    def completion_tokens(self) -> int:
        """How many were generated, shown or not."""
        return self.sequence.generated

    @property
    def finish(self) -> str:
        """Why it ended: a script by itself, all else at its limit or where the server said."""
        job = self.generation.job
        script = job.script
        if script is None or len(self.tokens) < len(script.tokens):
            return "stop" if job.ends_itself else "length"
        return script.finish


class Generation:
    """One request: k prompts x n choices, one answer."""

    def __init__(
        self, server: Instance, reply: Reply, job: Job, dialect: Dialect, request_id: str
    ) -> None:
        self._server = server
        self._reply = reply
        self._request_id = request_id
        self._faults = faults = reply.faults
        self.job = job
        self.dialect = dialect
        self._break: Fault | None = next((faults[k] for k in _BREAKS if k in faults), None)
        self._break_at = _tokens_until(self._break)
        stall_at = _tokens_until(next((faults[k] for k in _HANGS if k in faults), None))
        chunked = faults.get(FaultKind.MULTI_TOKEN)
        self._chunk_tokens = chunked.tokens if chunked else 1
        self._comments: asyncio.TimerHandle | None = None
        self._fresh = True
        self._over = False
        self._tokens = 0
        self.choices = [
            Choice(self, p * job.n + i, prompt, i, stall_at)
            for p, prompt in enumerate(job.prompts)
            for i in range(job.n)
        ]
        self._open = len(self.choices)

    @property
    def profile(self) -> Profile:
        return self._server.profile

    def start(self) -> None:
        """Answer as far as can be without the engine, then queue the sequences."""
        self._server.generations += 1
        self._reply.gone = self.gone
        if self.job.stream:
            self._reply.open_stream()
            for event in self.dialect.opening():
                self._reply.event(event)
        elif not _AT_ONCE.isdisjoint(self._faults):
            self._reply.head_only(_PROMISED_BYTES)
        if self._break_at == 0:
            self._break_off()
        elif FaultKind.DONE_ONLY in self._faults or FaultKind.ABORT_EMPTY in self._faults:
            self._say_nothing()
        else:
            self._comment_while_queued()
            self._server.pump.submit([choice.sequence for choice in self.choices])

    def token(self, choice: Choice) -> None:
        if self._over:
            return
        sequence = choice.sequence
        if sequence.generated:
            if sequence.generated <= self.job.hidden_tokens:
                return
            choice.tokens.append(choice.voice.speak())
            self._tokens += 1
        done = sequence.done
        if self.job.stream:
            if self._fresh:
                self._open_answer()
            if done or len(choice.tokens) - choice.sent >= self._chunk_tokens:
                self._send(choice, choice.finish if done else None)
        if self._tokens == self._break_at:
            self._break_off()
        elif done:
            self._open -= 1
            if not self._open:
                self._finish(choice.finish)

    def gone(self) -> None:
        """The client left: free the engine at once."""
        if not self._over:
            self._server.client_aborts_total += 1
            self._leave()

    def _open_answer(self) -> None:
        self._fresh = False
        self._stop_comments()
        for event in self.dialect.first():
            self._reply.event(event)

    def _send(self, choice: Choice, finish: str | None) -> None:
        fresh = choice.tokens[choice.sent :]
        choice.sent = len(choice.tokens)
        text = fresh[0].json if len(fresh) == 1 else b"".join([token.json for token in fresh])
        ids = b"null"
        if self.job.return_token_ids:
            ids = id_list([token.token_id for token in fresh])
        self._reply.event(self.dialect.delta(choice, text, ids, finish))

    def _finish(self, finish: str) -> None:
        self._end()
        if self.job.stream:
            for event in self.dialect.closing(self.choices):
                self._reply.event(event)
            self._reply.close_stream()
            return
        self._reply.whole(200, self.dialect.whole(self.choices, finish))

    def _say_nothing(self) -> None:
        """End without having asked the engine."""
        if self.job.stream and FaultKind.DONE_ONLY in self._faults:
            self._end()
            for event in self.dialect.done_only():
                self._reply.event(event)
            self._reply.close_stream()
            return
        if self.job.stream:
            self._open_answer()
        self._abort()

    def _abort(self) -> None:
        """End every choice without more text."""
        if self.job.stream:
            for choice in self.choices:
                self._reply.event(self.dialect.delta(choice, b"", b"null", "abort"))
        self._finish("abort")

    def _break_off(self) -> None:
        """Fail where the fault says: an error event, or a cut."""
        fault = self._break
        assert fault is not None
        self._leave()
        if fault.kind is FaultKind.ABORT_MID_STREAM:
            self._abort()
            return
        if fault.kind is FaultKind.GARBAGE:
            self._reply.raw(_GARBAGE)
            self._reply.cut(rst=fault.rst)
            return
        if fault.kind is not FaultKind.ERROR_EVENT:
            if self.job.stream or fault.kind is FaultKind.CUT_AFTER_HEADERS:
                self._reply.cut(rst=fault.rst)
            else:
                body = self.dialect.whole(self.choices, "length")
                self._reply.head_only(len(body))
                self._reply.raw(body[: len(body) // 2])
                self._reply.cut(rst=fault.rst)
            return
        refusal = engine_error(fault.status)
        if not self.job.stream:
            anthropic = isinstance(self.dialect, Messages)
            self._reply.whole(refusal.status, refusal.body(anthropic=anthropic))
            return
        events = self.dialect.broken(refusal)
        if events is None:
            self._reply.cut(rst=False)
            return
        for event in events:
            self._reply.event(event)
        self._reply.close_stream()

    def _leave(self) -> None:
        self._end()
        self._server.pump.abort([choice.sequence for choice in self.choices])

    def _end(self) -> None:
        if not self._over:
            self._over = True
            self._stop_comments()
            self._reply.gone = None
            self._server.generations -= 1
            self._server.work.append(self._work())

    def _work(self) -> Work:
        return Work(
            self._request_id,
            prompt_tokens=sum(prompt.tokens for prompt in self.job.prompts),
            cached_tokens=sum(choice.sequence.cached_tokens for choice in self.choices),
            generated_tokens=self._tokens,
            whole=not self._open,
        )

    def _comment_while_queued(self) -> None:
        fault = self._faults.get(FaultKind.KEEP_ALIVE)
        if fault is not None and self.job.stream:
            loop = asyncio.get_running_loop()
            self._comments = loop.call_later(fault.every_s, self._comment)

    def _comment(self) -> None:
        self._reply.event(_KEEP_ALIVE)
        self._comment_while_queued()

    def _stop_comments(self) -> None:
        if self._comments is not None:
            self._comments.cancel()
            self._comments = None


def _tokens_until(fault: Fault | None) -> int | None:
    """How many tokens go out before a fault strikes."""
    if fault is None:
        return None
    return 0 if fault.kind in _AT_ONCE else fault.tokens
