"""The whole screen as lines, for any size: first the sentence, last the keys."""

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from penstock.proxy.commands.fleet_table import age
from penstock.proxy.commands.plain_text import fit, plain
from penstock.proxy.commands.top import rows as rows_of
from penstock.proxy.commands.top.feed import Link
from penstock.proxy.commands.top.lines import (
    EMPTY,
    NONE,
    Line,
    Placed,
    Span,
    Told,
    Tone,
    heads,
    placed,
    row,
    width_of,
    within,
    wrapped,
)
from penstock.proxy.commands.top.summaries import (
    first_token_line,
    slo_lines,
    totals_line,
    verdict_lines,
    waiting_line,
    waiting_lines,
)
from penstock.proxy.commands.top.view import Cursor, View

# From here on there is room for more than the shortest form of each part.
TALL: Final = 36
WIDE: Final = 140
# Where the queues stand beside the requests, they have so many cells.
WAITING_WIDE: Final = 56
# A list of requests needs so many rows, and gets the second number if there is room.
REQUEST_ROWS: Final = (4, 21)
_KEYS: Final = "s sort / find Enter open v why d drain r ready m maint f {} ? help q quit"


class Scene(NamedTuple):
    """What there is to draw. `snapshot`: the last one, None before the first. `note`: an answer
    to the last key."""

    url: str
    link: Link
    snapshot: Told | None = None
    note: str = ""


def picture(scene: Scene, view: View, width: int, height: int) -> list[Line]:
    """Exactly `height` lines of at most `width` cells. The marks of `view` follow their entries."""
    top = wrapped(plain(scene.link.trouble), "bad", width, 2) if scene.link.trouble else []
    bottom = [_status(scene, width), _keys(scene, view)]
    rows = height - len(top) - len(bottom)
    middle: list[Line]
    if scene.snapshot is None:
        middle = [] if top else [(Span(f"Asking {plain(scene.url)} for the first picture."),)]
    else:
        middle = _middle(scene.snapshot, view, width, rows)
    middle = middle[: max(0, rows)]
    lines = [*top, *middle, *([EMPTY] * (rows - len(middle))), *bottom]
    return [within(line, width) for line in lines[:height]]


def _middle(snapshot: Told, view: View, width: int, rows: int) -> list[Line]:
    tall = rows >= TALL
    head = [
        *verdict_lines(snapshot, width, 12 if tall else 5),
        *([EMPTY] if tall else []),
        *slo_lines(snapshot["slos"], width, 5 if tall else 1),
        totals_line(snapshot, width),
        *([first_token_line(snapshot["rates"], width), EMPTY] if tall else []),
    ]
    rest = rows - len(head)
    least, most = REQUEST_ROWS
    # The heads, the rows, and the line below them.
    needed = len(snapshot["backends"]) + 2
    foot_rows = min(max(least, rest // 3, rest - needed), most + 2)
    foot = _foot(snapshot, view, width, foot_rows, tall=tall) if rest > 2 * least else []
    return [*head, *_backends(snapshot, view, width, rest - len(foot)), *foot]


def _foot(snapshot: Told, view: View, width: int, rows: int, *, tall: bool) -> list[Line]:
    """What waits, and recent requests: beside each other if there is room."""
    if not tall:
        return [waiting_line(snapshot["queue"], width), *_requests(snapshot, view, width, rows - 1)]
    if width < WIDE:
        waiting = waiting_lines(snapshot["queue"], width, rows // 3)
        return [EMPTY, *waiting, EMPTY, *_requests(snapshot, view, width, rows - len(waiting) - 2)]
    left = waiting_lines(snapshot["queue"], WAITING_WIDE - 2, rows - 1)
    right = _requests(snapshot, view, width - WAITING_WIDE, rows - 1)
    return [EMPTY, *_beside(left, right, rows - 1)]


def _beside(left: Sequence[Line], right: Sequence[Line], rows: int) -> list[Line]:
    lines = []
    for number in range(rows):
        begin = within(left[number], WAITING_WIDE - 2) if number < len(left) else EMPTY
        space = Span(" " * (WAITING_WIDE - width_of(begin)))
        lines.append((*begin, space, *(right[number] if number < len(right) else EMPTY)))
    return lines


def _backends(snapshot: Told, view: View, width: int, rows: int) -> list[Line]:
    backends, found = snapshot["backends"], view.rows(snapshot)
    one_pool = len({each["pool"] for each in backends}) < 2  # it needs no column
    columns = [each for each in rows_of.COLUMNS if each.head != "POOL" or not one_pool]
    shown = placed(columns, backends, width)
    view.columns = [column for column, _ in shown]
    has_keys = view.focus == "backends"
    lines = _rows(shown, found, view.backends, rows - 2, rows_of.sign_of, has_keys=has_keys)
    lines.insert(0, heads(shown, view.sorted_by, down=view.down))
    if not backends:
        lines.append((Span("  There is no backend. Add one to pools[].backends, and reload."),))
    lines.append(_below(snapshot, view, len(found), rows - 2))
    return [*lines, *([EMPTY] * (rows - len(lines)))]


def _rows(
    columns: Placed,
    entries: Sequence[Told],
    cursor: Cursor,
    rows: int,
    sign_of: Callable[[Told], str],
    *,
    has_keys: bool,
) -> list[Line]:
    at = cursor.place(entries, rows)
    return [
        row(columns, each, sign_of(each), marked=has_keys and number == at)
        for number, each in enumerate(entries[cursor.top : cursor.top + rows], cursor.top)
    ]


def _below(snapshot: Told, view: View, found: int, rows: int) -> Line:
    """Which of the backends are shown, and in which order."""
    all_of_them, first = len(snapshot["backends"]), view.backends.top
    able = [each for each in snapshot["backends"] if each["can_serve"]]
    serve = sum(each["state"] != "ejected" for each in able)  # the others as a last resort
    parts = [f"  {serve:,} of {all_of_them:,} can serve"]
    if view.wanted:
        parts.append(f"{found:,} fit the filter '{plain(view.wanted)}'")
    if found > rows:
        parts.append(f"rows {first + 1:,} to {min(found, first + rows):,} of {found:,}")
    direction = "largest first" if view.down else "in order"
    parts.append(f"by {view.sorted_by}, {direction}" if view.sorted_by else "worst first")
    return (Span("; ".join(parts), "quiet"),)


def _requests(snapshot: Told, view: View, width: int, rows: int) -> list[Line]:
    entries = snapshot["requests"][view.kind]
    (column, wide), *others = placed(rows_of.request_columns(entries), entries, width)
    shown = [(column._replace(head=view.kind.upper()), wide), *others]
    has_keys, sign_of = view.focus == "requests", rows_of.failed_sign
    lines = _rows(shown, entries, view.requests, rows - 1, sign_of, has_keys=has_keys)
    lines.insert(0, heads(shown, None, down=False))
    if not entries:
        none = "No request yet." if view.kind == "slow" else "No request has failed."
        lines.append((Span(f"  {none}", "quiet"),))
    return lines


def _status(scene: Scene, width: int) -> Line:
    """Which proxy this is, and whether the picture is live."""
    words = scene.url.partition("//")[2]
    if scene.snapshot is not None:
        told = scene.snapshot["proxy"]
        lag = f"{told['lag_ms']:.0f} ms" if told["lag_ms"] is not None else NONE
        words += (
            f"  penstock {told['version']} {told['state']}, up {age(told['up_s'])},"
            f" {told['open_requests']:,} open, lag {lag}"
        )
    state = {"connecting": "asking", "live": "live", "lost": "OLD FIGURES"}[scene.link.state]
    left = fit(plain(words), max(0, width - len(state) - 2))
    tone: Tone = "good" if scene.link.state == "live" else "warn"
    return (Span(left, "quiet"), Span("  "), Span(state, tone))


def _keys(scene: Scene, view: View) -> Line:
    if view.editing:
        return (
            Span(f"find: {plain(view.wanted)}_", "strong"),
            Span("   Enter keeps it, Escape shows all", "quiet"),
        )
    if scene.note:
        return (Span(plain(scene.note), "strong"),)
    failed = len(scene.snapshot["requests"]["failed"]) if scene.snapshot is not None else 0
    return (Span(_KEYS.format(f"failed {failed}" if view.kind == "slow" else "slow"), "quiet"),)
