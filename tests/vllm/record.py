"""Record what a real vLLM says on the wire: `python -m tests.vllm.record [NAME ...]`.

Each file of tests/golden is one request and its answer, byte for byte: the request's
head and body, then the answer's head and body, chunk sizes and all. What differs from
run to run is replaced by as many bytes: dates, times, random ids. Further names limit
what is written. Run it again when `install.sh` moves to another version.
"""

import re
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import orjson

from tests.vllm.server import MODEL, ROOT, VllmServer

GOLDEN: Final = ROOT / "tests" / "golden"
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
RESPONSES, MESSAGES = "/v1/responses", "/v1/messages"
QUESTION: Final = [{"role": "user", "content": "Tell me of rivers."}]
ASK: Final[dict[str, dict[str, Any]]] = {
    CHAT: {"model": MODEL, "messages": QUESTION, "max_tokens": 4, "temperature": 0},
    COMPLETIONS: {"model": MODEL, "prompt": "Once upon a time", "max_tokens": 4, "temperature": 0},
    RESPONSES: {
        "model": MODEL,
        "input": "Tell me of rivers.",
        "max_output_tokens": 4,
        "temperature": 0,
    },
    MESSAGES: {"model": MODEL, "messages": QUESTION, "max_tokens": 4, "temperature": 0},
}
NAMES: Final = {
    CHAT: "chat",
    COMPLETIONS: "completions",
    RESPONSES: "responses",
    MESSAGES: "messages",
}
USAGE: Final = {"stream_options": {"include_usage": True}}
EVERY_USAGE: Final = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}
TOKEN_IDS: Final = {"prompt": [11, 12, 13]}
LONG: Final = {CHAT: "max_tokens", COMPLETIONS: "max_tokens", MESSAGES: "max_tokens"} | {
    RESPONSES: "max_output_tokens"
}
ANSWER_WITHIN_S: Final = 60.0

Case = tuple[str, str, dict[str, Any]]  # a name, a path, what the body says beside ASK


def whole_answers() -> Iterator[Case]:
    """Everything that goes well, and what is the client's fault."""
    for path, name in NAMES.items():
        yield name, path, {}
        yield f"{name}_stream", path, {"stream": True}
        yield f"{name}_unknown_model", path, {"model": "gpt-0"}
        yield f"{name}_too_long", path, {LONG[path]: 5_000}
    for path in (CHAT, COMPLETIONS):
        name = NAMES[path]
        yield f"{name}_n2", path, {"n": 2, "temperature": 1, "seed": 1}
        yield f"{name}_stream_n2", path, {"n": 2, "temperature": 1, "seed": 1, "stream": True}
        yield f"{name}_stream_usage", path, {"stream": True, **USAGE}
        yield f"{name}_stream_every_usage", path, {"stream": True, **EVERY_USAGE}
        yield f"{name}_stream_token_ids", path, {"stream": True, "return_token_ids": True}
    yield "completions_stream_prompts", COMPLETIONS, {"prompt": ["a", "b"], "stream": True, **USAGE}
    yield "chat_stream_unknown_model", CHAT, {"model": "gpt-0", "stream": True}
    yield "chat_no_messages", CHAT, {"messages": None}
    yield "chat_prompt_too_long", CHAT, {"messages": [{"role": "user", "content": "x" * 60_000}]}
    yield "count_tokens", "/v1/messages/count_tokens", ASK[MESSAGES]
    yield "tokenize", "/tokenize", {"model": MODEL, "prompt": "rivers"}
    yield "unknown_path", "/v1/unknown", {"model": MODEL}


def refusals() -> Iterator[Case]:
    """What a server says to every dialect when it does not begin; streamed it is the same."""
    for path, name in NAMES.items():
        yield name, path, {}


def ends() -> Iterator[Case]:
    """What it says when it ends in the middle."""
    for path, name in NAMES.items():
        yield name, path, {}
        yield f"{name}_stream", path, {"stream": True}


def draining() -> Iterator[Case]:
    """Token ids need no tokenizer, whose threads are gone: they come as far as the engine."""
    yield from refusals()
    yield "token_ids", COMPLETIONS, TOKEN_IDS
    yield "token_ids_stream", COMPLETIONS, {**TOKEN_IDS, "stream": True}


def request(path: str, fields: dict[str, Any]) -> bytes:
    body = {key: value for key, value in (ASK.get(path, {}) | fields).items() if value is not None}
    raw = orjson.dumps(body)
    return (
        b"POST %b HTTP/1.1\r\nhost: vllm\r\nx-request-id: golden\r\n"
        b"content-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
    ) % (path.encode(), len(raw), raw)


def ended(answer: bytes) -> bool:
    """Whether an answer is whole, by its own framing."""
    head, separator, body = answer.partition(b"\r\n\r\n")
    length = re.search(rb"\r\ncontent-length: (\d+)", head)
    if length:
        return len(body) == int(length[1])
    return bool(separator) and body.endswith(b"\r\n0\r\n\r\n")


def exchange(server: VllmServer, raw: bytes) -> bytes:
    """The answer to a request, as far as it comes."""
    answer = b""
    with socket.create_connection(("127.0.0.1", server.port), ANSWER_WITHIN_S) as sock:
        sock.sendall(raw)
        try:
            while not ended(answer) and (more := sock.recv(65_536)):
                answer += more
        except (ConnectionResetError, TimeoutError):
            pass
    return answer


def normal(answer: bytes) -> bytes:
    """The answer without what differs from run to run; every length stays."""
    answer = re.sub(rb"(\r\ndate: )[^\r]{29}", rb"\1Thu, 01 Jan 2026 00:00:00 GMT", answer)
    answer = re.sub(rb'("created(?:_at)?": ?)\d{10}', rb"\g<1>1767225600", answer)
    return re.sub(rb"(?<=[_-])[0-9a-f]{16,32}\b", lambda m: b"0" * len(m[0]), answer)


class Recorder:
    """Writes what is wanted."""

    def __init__(self, wanted: list[str]) -> None:
        self._wanted = wanted

    def keep(self, name: str, raw: bytes, answer: bytes) -> None:
        if self._wanted and name not in self._wanted:
            return
        assert answer, f"{name}: no answer"
        (GOLDEN / f"{name}.http").write_bytes(raw + normal(answer))
        print(f"{name}: {answer.partition(bytes([13]))[0].decode()}, {len(answer)} bytes")

    def cases(self, server: VllmServer, cases: Iterator[Case], prefix: str = "") -> None:
        for name, path, fields in cases:
            raw = request(path, fields)
            self.keep(prefix + name, raw, exchange(server, raw))


@contextmanager
def running(folder: Path, *flags: str) -> Iterator[VllmServer]:
    server = VllmServer(folder / "vllm.log", *flags)
    try:
        yield server.start().wait()
    finally:
        server.kill()


@contextmanager
def occupied(server: VllmServer, streams: int = 1) -> Iterator[None]:
    """Long streams, so that a draining server has something to wait for."""
    raw = request(COMPLETIONS, {"stream": True, "max_tokens": 4_000, "ignore_eos": True})
    threads = [threading.Thread(target=exchange, args=(server, raw)) for _ in range(streams)]
    for thread in threads:
        thread.start()
    while server.gauge("vllm:num_requests_running") < streams:
        time.sleep(0.02)
    yield
    server.kill()
    for thread in threads:
        thread.join()


def main(wanted: list[str]) -> None:
    recorder = Recorder(wanted)
    GOLDEN.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with running(folder, "--shutdown-timeout", "30") as server:
            recorder.cases(server, whole_answers())
            with occupied(server):
                server.drain()
                time.sleep(1)
                recorder.cases(server, draining(), "draining_")
        with running(folder, "--max-num-queued-reqs", "2") as server:
            record_inside(recorder, server)
            with occupied(server, 2):
                recorder.cases(server, refusals(), "busy_")
        with running(folder) as server:
            record_cut(recorder, server, server.kill_engine, ["dead_"])
        with running(folder, "--max-num-seqs", str(len(list(ends())))) as server:
            record_cut(recorder, server, server.abort_all, ["aborted_", "aborted_queued_"])


def record_inside(recorder: Recorder, server: VllmServer) -> None:
    """The limit found out after the 200: one of a burst, for each dialect."""
    for path, name in NAMES.items():
        raw = request(path, {"stream": True})
        for _ in range(20):
            answers = together(server, [raw] * 40)
            refused = [a for a in answers if a.startswith(b"HTTP/1.1 200") and broken(a)]
            if refused:
                recorder.keep(f"busy_{name}_inside", raw, refused[0])
                break
        else:
            print(f"busy_{name}_inside: not seen")


def broken(answer: bytes) -> bool:
    """Whether a stream of a 200 holds an error, or was cut as that of responses is."""
    return b'"error"' in answer or not ended(answer)


def record_cut(
    recorder: Recorder, server: VllmServer, end: Callable[[], None], prefixes: list[str]
) -> None:
    """Every dialect, streamed and not, in prefill or decode when its server ends them.

    With two prefixes, a second set waits in the queue while the first one runs.
    """
    cases = list(ends())
    raws = [request(p, fields | {LONG[p]: 3_900, "ignore_eos": True}) for _, p, fields in cases]
    gauges = ("vllm:num_requests_running", "vllm:num_requests_waiting")
    with ThreadPoolExecutor(len(raws) * len(prefixes)) as pool:
        answers = []
        for _, gauge in zip(prefixes, gauges, strict=False):
            answers += [pool.submit(exchange, server, raw) for raw in raws]
            while server.gauge(gauge) < len(raws):
                time.sleep(0.02)
        end()
        for i, answer in enumerate(answers):
            if got := answer.result():
                prefix, (name, *_) = prefixes[i // len(raws)], cases[i % len(raws)]
                recorder.keep(prefix + name, raws[i % len(raws)], shortened(got))


def together(server: VllmServer, raws: list[bytes]) -> list[bytes]:
    with ThreadPoolExecutor(len(raws)) as pool:
        return list(pool.map(lambda raw: exchange(server, raw), raws))


def shortened(answer: bytes) -> bytes:
    """Without the chunks in the middle of a long stream."""
    head, separator, body = answer.partition(b"\r\n\r\n")
    if b"chunked" not in head or len(body) < 4_000:
        return answer
    chunks = re.split(rb"(?<=\n\n\r\n)", body)
    return head + separator + b"".join(chunks[:5] + chunks[-5:])


if __name__ == "__main__":
    main(sys.argv[1:])
