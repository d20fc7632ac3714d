"""`penstock bench estimators`: how far estimates of prompt tokens are from a real server's counts.

Takes texts of four classes from directories (prose, code, JSON, Chinese), sends
each as a chat of one token to a server, and compares the estimate that would
have routed it with the `usage.prompt_tokens` that comes back; the estimator
learns from each, as in the proxy. Classes come mixed, and errors count once 50
texts of each were seen. Now and then a chat with an inline image goes through
the estimator too, which must not move it. With `--tokenizer` the exact count
of that file is compared as well.
"""

import statistics
from argparse import ArgumentParser, Namespace
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Final

import orjson

from penstock.balancing.ask import Ask
from penstock.balancing.reader import GENERATION, Reader
from penstock.balancing.token_counter import HuggingFace, TokenCounter, count_prompt
from penstock.balancing.tokens import TokenEstimator
from penstock.bench.arguments import count
from penstock.bench.client import address, call
from penstock.bench.report import BenchError, head, row

CLASSES: Final = ("prose", "code", "json", "chinese")
TEXT_CHARS: Final = (400, 3_000)
# A token has at least a byte: no text is longer than the smallest context in use.
TEXT_BYTES_MAX: Final = 3_600
# Of one file, where there are few of its class.
PIECES_MAX: Final = 5
WARM: Final = 50
_SUFFIXES: Final = {
    ".md": "prose", ".txt": "prose", ".rst": "prose", ".py": "code", ".c": "code", ".h": "code",
    ".js": "code", ".json": "json", ".po": "chinese",
}  # fmt: skip
_IMAGE: Final = "data:image/png;base64," + "iVBORw0KGgo" * 8_000


def texts(folders: Sequence[Path], count: int, rng: Random) -> dict[str, list[str]]:
    """`count` pieces of text of each class, spread over the files; fewer where they lack."""
    found: dict[str, list[str]] = defaultdict(list)
    paths = sorted(path for folder in folders for path in folder.rglob("*") if path.is_file())
    rng.shuffle(paths)
    for path in paths * PIECES_MAX:
        kind = _SUFFIXES.get(path.suffix)
        if kind is None or path.stat().st_size > 5_000_000:
            continue
        text = path.read_text(errors="ignore")
        wide = sum("\u4e00" <= char <= "\u9fff" for char in text[:20_000])
        if wide > 0.2 * min(len(text), 20_000):
            kind = "chinese"
        elif kind == "chinese":
            continue
        length = rng.randint(*TEXT_CHARS)
        if len(text) >= TEXT_CHARS[0] and len(found[kind]) < count:
            start = rng.randint(0, max(0, len(text) - length))
            piece = text[start : start + length].encode()[:TEXT_BYTES_MAX]
            found[kind].append(piece.decode(errors="ignore"))
    return found


class Server:
    """Counts a chat's prompt tokens by asking for one token."""

    def __init__(self, url: str) -> None:
        self._port, self._host = address(url)
        self.model = self._ask("GET", "/v1/models", None)["data"][0]["id"]

    def prompt_tokens(self, body: bytes) -> int:
        return int(self._ask("POST", "/v1/chat/completions", body)["usage"]["prompt_tokens"])

    def _ask(self, method: str, path: str, body: bytes | None) -> dict:  # type: ignore[type-arg]
        headers = {"content-type": "application/json"}
        try:
            status, content = call(
                self._port, method, path, body, headers, host=self._host, within_s=60.0
            )
        except OSError as error:
            raise BenchError(f"the server does not answer: {error}") from None
        if status != 200:
            raise BenchError(f"the server answered {status}: {content[:200]!r}")
        return orjson.loads(content)  # type: ignore[no-any-return]


def samples(
    found: dict[str, list[str]], server: Server, counter: TokenCounter | None, rng: Random
) -> Iterator[tuple[str, str, float]]:
    """(estimator, class, estimate / actual) of what comes once every class has WARM texts."""
    estimator = TokenEstimator()
    arrivals: list[tuple[str, str, bool]] = []
    for measured in (False, True):
        part = [
            (kind, text, measured)
            for kind, pieces in found.items()
            for text in (pieces[WARM:] if measured else pieces[:WARM])
        ]
        rng.shuffle(part)
        arrivals += part
    for number, (kind, text, measured) in enumerate(arrivals):
        if number % 5 == 0:
            image = {"type": "image_url", "image_url": {"url": _IMAGE}}
            ask = _ask(_body(server.model, [image, {"type": "text", "text": text}]), estimator)
            _learn(estimator, ask, 1_400)
        body = _body(server.model, text)
        asks = {"bytes": _ask(body, estimator)}
        counted = count_prompt(counter, body) if counter else None
        if counted is not None:
            asks["exact"] = asks["bytes"].with_count(counted, estimator)
        actual = server.prompt_tokens(body)
        if measured:
            for name, ask in asks.items():
                yield name, kind, ask.prompt_tokens / actual
        _learn(estimator, asks.get("exact", asks["bytes"]), actual)


def _ask(body: bytes, estimator: TokenEstimator) -> Ask:
    headers = [(b"content-type", b"application/json")]
    return Reader(estimator).read("/v1/chat/completions", headers, body, GENERATION)


def _learn(estimator: TokenEstimator, ask: Ask, actual: int) -> None:
    estimator.observe(ask.model, ask.measured, actual, ask.media_parts, ask.counted)


def _body(model: str, content: object) -> bytes:
    messages = [{"role": "user", "content": content}]
    return orjson.dumps({"model": model, "max_tokens": 1, "messages": messages})


def arguments(parser: ArgumentParser) -> None:
    parser.add_argument("folders", nargs="+", type=Path, metavar="DIR", help="where texts are")
    parser.add_argument("--server", required=True, metavar="URL", help="a vLLM server")
    parser.add_argument("--tokenizer", type=Path, metavar="FILE", help="its tokenizer.json")
    parser.add_argument("--each", type=count, default=50, help="texts measured of each class")
    parser.add_argument("--seed", type=int, default=1)


def run(options: Namespace) -> int:
    """Print the table; returns the exit status."""
    rng = Random(options.seed)
    wanted = WARM + options.each
    found = texts(options.folders, wanted, rng)
    lacking = [kind for kind in CLASSES if len(found[kind]) < wanted]
    if lacking:
        counts = ", ".join(f"{len(found[kind])} of {kind}" for kind in lacking)
        raise BenchError(f"fewer than {wanted} texts there: {counts}")
    counter = HuggingFace(options.tokenizer.read_bytes()) if options.tokenizer else None
    ratios: dict[tuple[str, str], list[float]] = defaultdict(list)
    for name, kind, ratio in samples(found, Server(options.server), counter, rng):
        ratios[name, kind].append(ratio)
        ratios[name, "all"].append(ratio)
    texts_title = f"texts, after {WARM}"
    print(head("estimator", "class", texts_title, "median ratio", "median error", "p90 error"))
    for (name, kind), values in sorted(ratios.items()):
        errors = sorted(abs(ratio - 1.0) for ratio in values)
        p90 = errors[int(0.9 * len(errors))]
        ratio, error = statistics.median(values), statistics.median(errors)
        print(row(name, kind, len(errors), f"{ratio:.3f}", f"{error:.1%}", f"{p90:.1%}"))
    return 0
