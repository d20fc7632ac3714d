"""The sentence for each pool: what makes it slow, since when, and what to do."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from penstock.proxy.commands.plain_text import plain
from penstock.proxy.commands.proxy_lines import told_of
from penstock.proxy.commands.top.figures import clock, many
from penstock.proxy.commands.top.line import EMPTY, Line, Span, wrapped

INDENT: Final = "  "
# A sentence and a remedy have so many lines each at most.
SENTENCE_LINES_MAX: Final = 3
NAMED_MAX: Final = 3
MORE: Final = Span(" ..", "quiet")


def verdict_lines(snapshot: Mapping[str, Any], width: int, lines_max: int) -> list[Line]:
    """What is wrong first, and all in `lines_max` lines: what does not fit is counted."""
    verdicts = snapshot["verdicts"]
    wrong = [each for each in verdicts if each["kind"] != "fine"]
    fine = [each for each in verdicts if each["kind"] == "fine"]
    blocks = [_wrong(each, width, lines_max) for each in wrong]
    blocks += [[(Span("! ", "warn"), Span(plain(each), "warn"))] for each in _of_proxy(snapshot)]
    if fine or not verdicts:
        blocks.append([_fine(fine, len(wrong))])
    return _most(blocks, lines_max)


def _wrong(told: Mapping[str, Any], width: int, lines_max: int) -> list[Line]:
    since = f", since {clock(told['since'])}" if told["since"] else ""
    sentence = plain(f"! {told['pool']}{since}: {told['sentence']}")
    lines = wrapped(
        sentence, "bad", width - len(MORE.text), min(lines_max, SENTENCE_LINES_MAX), INDENT
    )
    for step in told["to_do"]:
        step = plain(f"{INDENT}To do: {step}")
        lines += [
            (Span(INDENT), *line) for line in wrapped(step, "", width - 2, SENTENCE_LINES_MAX)
        ]
    return lines


def _of_proxy(snapshot: Mapping[str, Any]) -> list[str]:
    """What is wrong with the proxy itself."""
    told = snapshot["proxy"]
    # What waits stands elsewhere.
    lines = told_of({**told, "waiting": {}})
    if problems := told["reload_failed"]:
        lines.append(
            f"The last reload failed: {many(len(problems), 'problem')}, which penstock status"
            " names. The previous configuration is still in use."
        )
    return lines


def _fine(fine: Sequence[Mapping[str, Any]], wrong: int) -> Line:
    if not fine:
        return (Span("No verdict yet: the first looks take a second or two.", "quiet"),)
    few = len(fine) <= NAMED_MAX
    named = ", ".join(plain(each["pool"]) for each in fine) if few else many(len(fine), "pool")
    if wrong:
        return (Span(f"{INDENT}{named}: nothing is wrong there.", "quiet"),)
    since = clock(max(each["since"] for each in fine))
    return (Span(f"{named}: nothing is wrong.", "good"), Span(f"  Since {since}.", "quiet"))


def _most(blocks: Sequence[list[Line]], lines_max: int) -> list[Line]:
    """The first line of each block, and as many of the others as there is room for."""
    if len(blocks) > lines_max:
        left = len(blocks) - lines_max + 1
        more = (Span(f"{INDENT}and {left:,} more: penstock status names all.", "quiet"),)
        return [*(block[0] for block in blocks[: lines_max - 1]), more]
    spare = lines_max - len(blocks)
    lines: list[Line] = []
    for block in blocks:
        shown = block[: 1 + spare]
        spare -= len(shown) - 1
        lines += shown if len(shown) == len(block) else [*shown[:-1], (*shown[-1], MORE)]
    return lines or [EMPTY]
