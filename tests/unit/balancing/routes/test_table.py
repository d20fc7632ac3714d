"""What a table tells: fall-backs in order, mirrors, what it reads, and why rules do not match."""

from math import inf

import pytest

from penstock.balancing.routes.decision import Decision, spilled
from penstock.balancing.routes.table import RouteTable
from penstock.balancing.wants import needs_of
from penstock.conf.routes import CAUSES
from tests.unit.balancing.routes.rows import TABLES, read, request, table

CHAT = {"pool": "chat"}
BOTH = [CHAT, {"pool": "next"}]


def one(**given: object) -> RouteTable:
    """A table of one rule."""
    return table({"name": "r", "to": [CHAT], **given})


def decide(routes: RouteTable, row: str, draw: int = 0) -> Decision:
    decision = routes.decide(request(row, draw))
    assert decision is not None
    return decision


# -- fall-backs


def tried(decision: Decision, *causes: str) -> list[str]:
    """The pools that are tried when each fails for the next one of these causes."""
    step, pools = 0, [decision.place(0).pool]
    for cause in causes:
        steps = decision.steps(step, cause)
        if not steps:
            return [*pools, "-"]
        step = steps[0]
        pools.append(decision.place(step).pool)
    return pools


def test_fallbacks_are_tried_in_order_and_for_their_causes() -> None:
    routes = one(
        fallbacks=[
            {"pool": "long", "on": "context"},
            {"pool": "small", "on": ["overload", "errors"]},
            {"pool": "next"},
        ]
    )
    decision = decide(routes, "")
    assert tried(decision, "context", "errors", "no_backend") == ["chat", "long", "small", "next"]
    assert tried(decision, "no_backend", "no_backend") == ["chat", "next", "-"]
    assert tried(decision, "overload", "overload") == ["chat", "small", "next"]
    assert tried(decision, "overload", "overload", "errors") == ["chat", "small", "next", "-"]


def test_without_fallbacks_there_is_none() -> None:
    decision = decide(one(), "")
    assert not any(decision.steps(0, cause) for cause in CAUSES)


def test_a_fallback_that_is_the_target_itself_is_passed_over() -> None:
    to = [CHAT, {"pool": "next", "model": "v2"}]
    routes = one(sticky="request", to=to, fallbacks=BOTH)
    chains = {tuple(tried(decide(routes, "", draw), "errors", "errors")) for draw in range(50)}
    assert chains == {("chat", "next", "-"), ("next", "chat", "next")}


# -- what is held by what


def targets(routes: RouteTable, *rows: str, draws: int = 40) -> list[set[str]]:
    return [
        {target.pool for draw in range(draws) if (target := decide(routes, row, draw).target)}
        for row in rows
    ]


@pytest.mark.parametrize(
    ("sticky", "held", "drawn"),
    [
        ("session", ["session=s", "session=s user=a", "user=u"], ["", "tenant=sales"]),
        ("user", ["user=u", "user=u session=s", "session=s"], ["", "tenant=sales"]),
        ("tenant", ["tenant=sales", "", "client=::1 session=s"], ["client="]),
        ("request", [], ["session=s user=u tenant=sales", ""]),
    ],
)  # fmt: skip
def test_by_what_a_split_is_held(sticky: str, held: list[str], drawn: list[str]) -> None:
    routes = one(sticky=sticky, to=BOTH)
    assert all(len(found) == 1 for found in targets(routes, *held))
    assert all(len(found) == 2 for found in targets(routes, *drawn))


def test_what_comes_first_counts() -> None:
    """Requests of one session with changing users stay, and so on for each kind."""
    for sticky, row in (
        ("session", "session=s user={0}"),
        ("user", "user=s session={0}"),
        ("tenant", "tenant=sales session={0} user={0}"),
    ):
        routes = one(sticky=sticky, to=BOTH)
        assert len(set.union(*targets(routes, *[row.format(n) for n in range(40)], draws=1))) == 1
        others = [f"{sticky}={n}" for n in range(40)]
        assert len(set.union(*targets(routes, *others, draws=1))) == 2


def test_equal_users_and_sessions_of_two_tenants_are_two() -> None:
    routes = one(to=BOTH)
    for kind in ("user", "session"):
        rows = [[f"{kind}={n} tenant={name}" for name in ("sales", "research")] for n in range(40)]
        both = [targets(routes, *row, draws=1) for row in rows]
        assert any(first != other for first, other in both)


# -- mirrors


def test_a_mirror_gets_its_share_of_whole_sessions() -> None:
    routes = one(mirror={"pool": "next", "share": 0.25})
    found = [
        {decide(routes, f"session={n}", draw).mirrored for draw in (0, 1)} for n in range(2_000)
    ]
    assert all(len(each) == 1 for each in found)
    assert sum(True in each for each in found) == pytest.approx(500, abs=80)


def test_a_mirror_of_all_gets_all_and_without_one_none_is_copied() -> None:
    all_of = one(mirror={"pool": "next", "share": 1})
    assert all(decide(all_of, "", draw << 58).mirrored for draw in range(64))
    assert not decide(one(), "").mirrored


def test_mirrors_and_targets_are_chosen_independently() -> None:
    routes = one(to=[CHAT, {"pool": "small"}], mirror={"pool": "next", "share": 0.5})
    copied = [decide(routes, f"session={n}") for n in range(2_000)]
    of_chat = [each.mirrored for each in copied if each.place(0).pool == "chat"]
    assert sum(of_chat) / len(of_chat) == pytest.approx(0.5, abs=0.06)


# -- what is read


@pytest.mark.parametrize(
    ("route", "reads"),
    [
        ({"to": [CHAT]}, set()),
        ({"match": {"model": "m", "stream": True, "hours": {}}, "to": [CHAT]}, set()),
        ({"match": {"needs": ["tools"], "lacks": ["images"]}, "to": [CHAT]}, {"tools", "images"}),
        ({"match": {"effort": "high", "user": "u"}, "to": [CHAT]}, {"effort", "user"}),
        ({"match": {"session": "u*"}, "to": [CHAT]}, {"session"}),
        ({"to": [CHAT, {"pool": "next"}]}, {"session", "user"}),
        ({"to": [CHAT, {"pool": "next", "weight": 0}]}, set()),
        ({"to": [CHAT, {"pool": "next"}], "sticky": "tenant"}, set()),
        ({"to": [CHAT], "mirror": {"pool": "next", "share": 0.5}}, {"session", "user"}),
        ({"to": [CHAT], "mirror": {"pool": "next", "share": 1}}, set()),
        ({"to": [CHAT], "set": {"body": {"max_tokens_at_most": 5}}}, {"answer_limits"}),
        ({"match": {"label": ["simple"]}, "to": [CHAT]}, {"label"}),
        ({"refuse": "No."}, set()),
    ],
)
def test_what_is_read_is_what_rules_need(route: dict[str, object], reads: set[str]) -> None:
    assert table({"name": "r", **route}).reads == reads


def test_a_header_is_looked_up_once() -> None:
    routes = table(
        *[{"name": f"r{n}", "match": {"headers": {"x-a": f"v{n}"}}, "to": [CHAT]} for n in range(9)]
    )
    looks: list[bytes] = []
    asked = request("")
    asked._header = lambda name: looks.append(name)
    assert routes.decide(asked) is None
    assert looks == [b"x-a"]


def test_changes_are_bytes_and_json() -> None:
    defaults = {"t": 0.5, "e": 'q"', "k": 3, "f": True}
    routes = one(set={"headers": {"X-A": "b"}, "body": {"defaults": defaults}})
    changes = routes.rules[0].changes
    assert changes is not None
    assert changes.headers == ((b"x-a", b"b"),)
    assert dict(changes.defaults) == {b"t": b"0.5", b"e": b'"q\\""', b"k": b"3", b"f": b"true"}
    assert one().rules[0].changes is None


def test_a_refused_request_has_no_target() -> None:
    decision = decide(table({"name": "r", "refuse": "Ask somebody else."}), "")
    assert (decision.target, decision.rule.refusal) == (None, "Ask somebody else.")


# -- labels

LABELLED = [
    {"name": "tools", "match": {"needs": "tools"}, "to": [CHAT]},
    {"name": "simple", "match": {"model": "m*", "label": ["simple", "short"]}, "to": [CHAT]},
    {"name": "batch", "match": {"class": "batch"}, "to": [CHAT]},
    {"name": "hard", "match": {"label": "hard"}, "to": [CHAT]},
]


@pytest.mark.parametrize(
    ("row", "needed"),
    [
        ("model=m", True),
        ("model=m asks=tools", False),  # a route before it counts
        ("model=x", True),  # by the last
        ("model=x class=batch", False),
        ("model=m class=batch", True),
    ],
)
def test_a_label_is_needed_only_if_it_decides(row: str, needed: bool) -> None:
    routes = table(*LABELLED)
    assert routes.needs_label(request(row)) is needed


def test_a_request_without_a_label_is_for_no_rule_that_asks_for_one() -> None:
    routes = table(*LABELLED)
    assert routes.decide(request("model=m")) is None
    assert decide(routes, "model=m label=short").rule.name == "simple"
    assert decide(routes, "model=m label=hard").rule.name == "hard"
    assert routes.decide(request("model=m label=other")) is None


# -- why


@pytest.mark.parametrize(
    ("match", "row", "why"),
    [
        ({"model": ["a", "b*"]}, "model=c", 'the model is "c", not a or b*'),
        ({"model": "a"}, "", "it names no model"),
        ({"path": "/v1/messages"}, "", 'the path is "/v1/chat/completions", not /v1/messages'),
        ({"stream": True}, "", "it is no stream"),
        ({"stream": False}, "stream", "it is a stream"),
        ({"tenant": "sales"}, "tenant=research", "the tenant is research, not sales"),
        ({"tenant": "sales"}, "", "it has no tenant"),
        ({"class": "batch"}, "", "the class is standard, not batch"),
        ({"prompt_tokens": {"min": 101}}, "", "its prompt has about 100 tokens, fewer than 101"),
        ({"prompt_tokens": {"max": 9}}, "", "its prompt has about 100 tokens, not fewer than 9"),
        ({"needs": ["tools", "audio"]}, "asks=audio", "it does not ask for tools"),
        ({"needs": ["tools", "audio"]}, "", "it does not ask for audio and tools"),
        ({"lacks": ["tools"]}, "asks=tools", "it asks for tools"),
        ({"effort": "low"}, "effort=high", 'the effort is "high", not low'),
        ({"effort": "low"}, "", "it asks for no effort"),
        ({"user": "a"}, "user=b", "the user is not a"),
        ({"user": "a"}, "", "it names no user"),
        ({"label": ["a", "b"]}, "label=c", 'the label is "c", not a or b'),
        ({"label": "a"}, "", "it has no label"),
        ({"label": "a", "hours": {"days": "mon"}}, "", "it is Wed 12:00 in UTC, outside the hours"),
        ({"session": "a"}, "session=b", "the session key is not a"),
        ({"session": "a"}, "", "it has no session key"),
        ({"headers": {"x-a": "*"}}, "", "there is no header x-a"),
        ({"headers": {"x-b": "*", "x-a": "b"}}, "h:x-a=secret h:x-b=", "the header x-a is not b"),
        (
            {"hours": {"to": "09:00", "zone": "Europe/Berlin"}},
            "",
            "it is Wed 13:00 in Europe/Berlin, outside the hours",
        ),
        ({"model": ["a", "b", "c", "d", "e", "f", "g"]}, "model=x",
         'the model is "x", not a or b or c or d or e or one of 2 more'),
        ({"model": "a"}, f"model={'x' * 200}", f'the model is "{"x" * 80}...", not a'),
    ],
)  # fmt: skip
def test_why_a_rule_does_not_match(match: dict[str, object], row: str, why: str) -> None:
    (verdict,) = one(match=match).explain(request(row))
    assert verdict == ("r", False, why)


def test_every_rule_is_explained_in_order() -> None:
    routes = table(
        {"name": "first", "match": {"model": "x"}, "to": [CHAT]},
        {"name": "second", "match": {"model": "m*"}, "to": [CHAT]},
        {"name": "third", "match": {"stream": True}, "to": [CHAT]},
        {"name": "fourth", "to": [CHAT]},
    )
    assert routes.explain(request("model=m")) == [
        ("first", False, 'the model is "m", not x'),
        ("second", True, ""),
        ("third", False, "it is no stream"),
        ("fourth", False, "it matches, but second comes first"),
    ]


def test_no_value_of_a_client_that_may_be_secret_is_told() -> None:
    match = {"user": "a", "session": "a", "headers": {"x-a": "a"}}
    for name, pattern in match.items():
        rule = {"name": "r", "match": {name: pattern}, "to": [CHAT]}
        row = "user=hunter2 session=hunter2 h:x-a=hunter2"
        assert "hunter2" not in table(rule).explain(request(row))[0].why_not


def test_needs_are_bits() -> None:
    assert needs_of([]) == 0
    assert needs_of(["tools", "images"]) == needs_of(["images"]) | needs_of(["tools"])


# Which target a request gets where it may spill --------------------------------------------


USUAL_FIRST = {
    "name": "r",
    "to": [{"pool": "chat"}, {"pool": "long", "weight": 0}, {"pool": "next", "weight": 0}],
    "mirror": {"pool": "small", "share": 1},
    "spill": True,
}


def taken(**costs_s: float) -> str:
    decision = table(USUAL_FIRST).decide(request(""))
    assert decision is not None
    found = spilled(decision, lambda target: costs_s[target.pool])
    assert found.target is not None
    assert (found.rule, found.mirrored) == (decision.rule, True)
    return found.target.pool


@pytest.mark.parametrize(
    ("chat", "long", "next_", "wanted"),
    [
        (1.0, 1.0, 1.0, "chat"),
        (0.9, 0.0, 0.0, "chat"),  # less than a second is saved
        (1.1, 0.05, 0.05, "long"),
        (10.0, 6.0, 6.0, "chat"),  # not half of it
        (10.0, 4.9, 6.0, "long"),
        (10.0, 4.9, 4.8, "next"),
        (inf, 100.0, inf, "long"),
        (inf, inf, 3.0, "next"),
        (inf, inf, inf, "chat"),  # its own error is told
        (100.0, inf, inf, "chat"),
        (0.0, 0.0, 0.0, "chat"),
    ],
)
def test_the_usual_target_is_left_for_much_less_only(
    chat: float, long: float, next_: float, wanted: str
) -> None:
    assert taken(chat=chat, long=long, next=next_) == wanted


# Each row of each table is decided as it was decided by hand -------------------------------


NAMES = sorted(path.name for path in TABLES.iterdir())
ROWS = [(name, row, wanted) for name in NAMES for row, wanted in read(name)[1]]


def told(routes: RouteTable, row: str) -> str:
    decision = routes.decide(request(row, draw=len(row) << 40))
    if decision is None:
        return "-"
    target = decision.target
    if target is None:
        return f"{decision.rule.name}: refused"
    sent = f" as {target.model}" if target.model is not None else ""
    return f"{decision.rule.name}: {target.pool}{sent}"


@pytest.mark.parametrize("name", NAMES)
def test_every_row_is_decided_as_by_hand(name: str) -> None:
    rules, rows = read(name)
    routes = table(*rules)
    wrong = []
    for row, wanted in rows:
        rule, _, targets = wanted.partition(": ")
        allowed = [f"{rule}: {target}" for target in targets.split(" or ")] if targets else ["-"]
        found = told(routes, row)
        if found not in allowed:
            wrong.append(f"{row} | {found}, not {wanted}")
    assert not wrong


def test_there_are_enough_rows() -> None:
    assert len({(name, row) for name, row, _ in ROWS}) == len(ROWS) >= 150
