"""Routes that are never reached, and models that a pool does not serve, are warned of."""

import pytest

from penstock.conf.route_doubts import Conditions, CoverIndex, conditions, covers
from penstock.conf.route_match import MatchSettings
from tests.unit.conf.folder import Folder

POOLS = """\
pools:
  - {name: chat, models: [gpt-small, gpt-large], backends: [{name: a, url: "http://a:1"}]}
  - {name: open, backends: [{name: b, url: "http://b:1"}]}
  - {name: small, models: [qwen-0.5b], backends: [{name: c, url: "http://c:1"}]}
routes:
"""


def warnings(folder: Folder, *routes: str) -> list[str]:
    return folder.warnings(POOLS + "".join(f"  - {route}\n" for route in routes))


def given(match: dict[str, object]) -> Conditions:
    return conditions(MatchSettings.model_validate(match))


COVERED = [
    ({}, {}),
    ({}, {"model": "a"}),
    ({"model": "a"}, {"model": "a"}),
    ({"model": ["a", "b"]}, {"model": ["b"], "stream": True}),
    ({"model": "a*"}, {"model": ["a", "ab", "ab*", "a*"]}),
    ({"model": "*"}, {"model": "b*"}),
    ({"model": ["x", "b*"]}, {"model": "b"}),
    ({"path": "/v1/*"}, {"path": ["/v1/messages", "/v1/"]}),
    ({"stream": False}, {"stream": False}),
    ({"headers": {"x-a": "*"}}, {"headers": {"X-A": "b", "x-c": "d"}}),
    ({"headers": {"x-a": "b*"}}, {"headers": {"x-a": "bc*"}}),
    ({"tenant": ["a", "b"]}, {"tenant": "b"}),
    ({"class": ["batch"]}, {"class": "batch", "effort": "high"}),
    ({"prompt_tokens": {"min": 5}}, {"prompt_tokens": {"min": 5, "max": 9}}),
    ({"prompt_tokens": {"max": 9}}, {"prompt_tokens": {"max": 9}}),
    ({"prompt_tokens": {"min": 0}}, {}),
    ({"needs": ["tools"]}, {"needs": ["tools", "audio"]}),
    ({"lacks": ["tools"]}, {"lacks": ["audio", "tools"]}),
    ({"label": ["a", "b"]}, {"label": "a"}),
    ({"user": "u*"}, {"user": "u1"}),
    ({"session": "*"}, {"session": "s"}),
    ({"hours": {}}, {"hours": {"days": ["mon"], "zone": "Europe/Berlin"}}),
    ({"hours": {}}, {}),
    (
        {"hours": {"days": ["sun"], "from": "20:00", "to": "08:00"}},
        {"hours": {"days": ["mon"], "to": "08:00"}},
    ),
]
NOT_COVERED = [
    ({"model": "*"}, {}),
    ({"model": "a"}, {"model": "a*"}),
    ({"model": "ab*"}, {"model": "a*"}),
    ({"model": "a"}, {"model": ["a", "b"]}),
    ({"model": "a"}, {"model": "A"}),
    ({"stream": True}, {}),
    ({"stream": True}, {"stream": False}),
    ({"headers": {"x-a": "*"}}, {}),
    ({"headers": {"x-a": "b"}}, {"headers": {"x-a": "*"}}),
    ({"headers": {"x-a": "b"}}, {"headers": {"x-b": "b"}}),
    ({"tenant": "a"}, {}),
    ({"tenant": "a"}, {"tenant": ["a", "b"]}),
    ({"prompt_tokens": {"min": 5}}, {}),
    ({"prompt_tokens": {"min": 5}}, {"prompt_tokens": {"min": 4}}),
    ({"prompt_tokens": {"max": 9}}, {"prompt_tokens": {"min": 1}}),
    ({"prompt_tokens": {"max": 9}}, {"prompt_tokens": {"max": 10}}),
    ({"needs": ["tools", "audio"]}, {"needs": ["tools"]}),
    ({"lacks": ["tools"]}, {}),
    ({"label": "a"}, {}),
    ({"label": "a"}, {"label": ["a", "b"]}),
    ({"hours": {"days": ["mon"]}}, {}),
    ({"hours": {"from": "08:00"}}, {"hours": {"from": "07:59"}}),
    ({"hours": {"from": "08:00"}}, {"hours": {"from": "08:00", "zone": "Europe/London"}}),
]


@pytest.mark.parametrize(("earlier", "later"), COVERED)
def test_what_is_covered(earlier: dict[str, object], later: dict[str, object]) -> None:
    assert covers(given(earlier), given(later))
    index = CoverIndex()
    index.add(3, given({"model": "else", "stream": True}))
    index.add(5, given(earlier))
    index.add(7, given({}))
    assert index.covering(given(later)) == 5


@pytest.mark.parametrize(("earlier", "later"), NOT_COVERED)
def test_what_is_not_covered(earlier: dict[str, object], later: dict[str, object]) -> None:
    assert not covers(given(earlier), given(later))


def test_a_route_that_is_never_reached_is_told_with_the_one_before_it(folder: Folder) -> None:
    told = warnings(
        folder,
        "{name: wide, match: {model: 'gpt-*', stream: true}, to: [{pool: chat}]}",
        "{name: exact, match: {model: gpt-small}, to: [{pool: chat}]}",
        "{name: streams, match: {model: gpt-large, stream: true}, to: [{pool: chat}]}",
        "{name: again, match: {model: gpt-small, tenant: null}, to: [{pool: chat}]}",
        "{name: all, to: [{pool: open}]}",
        "{name: late, match: {headers: {x-a: b}}, refuse: Never.}",
    )
    assert told == [
        "conf.yaml:8: routes[2]: is never reached: wide, before it, takes all of its requests",
        "conf.yaml:9: routes[3]: is never reached: exact, before it, takes all of its requests",
        "conf.yaml:11: routes[5]: is never reached: all, before it, takes all of its requests",
    ]


@pytest.mark.parametrize(
    ("route", "at", "model"),
    [
        ("{name: r, match: {model: gpt-mini}, to: [{pool: chat}]}", "to[0].model", "gpt-mini"),
        ("{name: r, match: {model: x}, to: [{pool: small, model: y}]}", "to[0].model", "y"),
        ("{name: r, to: [{pool: open}, {pool: small, model: y}]}", "to[1].model", "y"),
        ("{name: r, match: {model: [gpt-small, b, c]}, to: [{pool: chat}]}", "to[0].model", "b, c"),
        ("{name: r, match: {model: 'llama*'}, to: [{pool: chat}]}", "to[0].model", "llama*"),
        (
            "{name: r, match: {model: gpt-small}, to: [{pool: chat}], fallbacks: [{pool: small}]}",
            "fallbacks[0].model",
            "gpt-small",
        ),
        (
            "{name: r, match: {model: a}, to: [{pool: open}], mirror: {pool: small, share: 1}}",
            "mirror.model",
            "a",
        ),
    ],
)
def test_a_model_that_the_pool_does_not_list(
    folder: Folder, route: str, at: str, model: str
) -> None:
    (told,) = warnings(folder, route)
    assert told.startswith(f"conf.yaml:6: routes[0].{at}: the pool ")
    assert f"does not list {model} in its `models`" in told


@pytest.mark.parametrize(
    "route",
    [
        "{name: r, to: [{pool: chat}, {pool: small}]}",
        "{name: r, match: {model: 'gpt-*'}, to: [{pool: chat}]}",
        "{name: r, match: {model: '*'}, to: [{pool: small}]}",
        "{name: r, match: {model: x}, to: [{pool: open}]}",
        "{name: r, match: {model: x}, to: [{pool: open}, {pool: chat, weight: 0}]}",
        "{name: r, match: {model: x}, to: [{pool: small, model: qwen-0.5b}]}",
        "{name: r, match: {model: x}, refuse: No.}",
    ],
)
def test_what_may_be_meant_is_not_doubted(folder: Folder, route: str) -> None:
    assert warnings(folder, route) == []
