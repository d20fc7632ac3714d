"""Routes: every key is read, and what is wrong with one is told with its line."""

import pytest

from penstock.conf.route_match import MatchSettings
from penstock.conf.show import as_json, render
from tests.unit.conf.folder import FLEET, Folder

NEXT = '  - {name: next, backends: [{name: b, url: "http://b:1"}]}\n'
TENANTS = "tenants: [{name: research, keys: [{key: sk-0123456789abcdef}]}]\n"
FIRST_LINE = 8


def routes(*entries: str) -> str:
    return FLEET + NEXT + TENANTS + "".join(["routes:\n", *(f"  - {each}\n" for each in entries)])


EVERY_KEY = """\
{name: r, match: {model: [a, "b*"], path: "/v1/*", headers: {X-Team: "*"}, tenant: research,
     class: batch, stream: false, prompt_tokens: {min: 0, max: 9}, needs: [tools], lacks: images,
     effort: high, user: u, session: "s*",
     hours: {days: sun, from: "22:00", to: "06:00", zone: Europe/Berlin}},
     to: [{pool: chat, weight: 95, model: m, lora_path: /adapters/m}, {pool: next, weight: 0}],
     sticky: user,
     fallbacks: [{pool: next, model: n, on: overload}],
     set: {headers: {X-Y: "$$z"}, body: {max_tokens_at_most: 5, defaults:
     {temperature: 0.2, a: x}}},
     mirror: {pool: next, share: 0.5}}"""
SPILLS = "{name: s, match: {model: s}, to: [{pool: chat}, {pool: next}], spill: true}"


def test_an_entry_of_every_key(folder: Folder) -> None:
    loaded = folder.load(routes(EVERY_KEY, SPILLS, "{name: no, refuse: Closed.}"))
    route, spilling, refusing = loaded.settings.routes
    assert spilling.spill
    match, changes = route.match, route.changes
    assert (match.model, match.path, match.tenant) == (("a", "b*"), ("/v1/*",), ("research",))
    assert match.headers == {"x-team": "*"}
    assert match.hours is not None
    assert (match.hours.days, match.hours.begin, match.hours.end) == (("sun",), "22:00", "06:00")
    assert [(each.pool, each.weight, each.model, each.lora_path) for each in route.to] == [
        ("chat", 95, "m", "/adapters/m"),
        ("next", 0, None, None),
    ]
    assert route.fallbacks[0].on == ("overload",)
    assert {name: each.get_secret_value() for name, each in changes.headers.items()} == {
        "x-y": "$z"
    }
    assert changes.body.defaults == {"temperature": 0.2, "a": "x"}
    assert (refusing.to, refusing.refuse, refusing.match) == ((), "Closed.", MatchSettings())
    shown = render(loaded).replace('"***"}', '"$$z"}')  # the value of a header is secret
    folder.file.write_text(shown)
    assert folder.load(shown, {"PENSTOCK_TENANTS": TENANTS[9:]}).settings == loaded.settings


def test_a_window_over_midnight_goes_on_on_monday(folder: Folder) -> None:
    hours = folder.load(routes(EVERY_KEY)).settings.routes[0].match.hours
    assert hours is not None
    sunday = 6 * 1440
    inside = [minute for minute in range(7 * 1440) if hours.minutes >> minute & 1]
    assert inside == [*range(6 * 60), *range(sunday + 22 * 60, sunday + 1440)]


TO = "to: [{pool: chat}]"


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        ("{name: r}", "[0]: give one of to and refuse"),
        ("{name: r, to: []}", "[0]: give one of to and refuse"),
        ("{name: r, to: [{pool: chat, weight: 0}]}", "[0]: to: all weights are 0, so no pool"),
        ("{name: r, refuse: No., set: {headers: {a: b}}}", "[0]: refuse: its requests go nowhere"),
        ("{name: r, refuse: ' '}", "[0].refuse: must be one line of 1 to 256 characters"),
        ("{name: r, to: [{pool: chat, lora_path: /a}]}", "[0].to[0]: lora_path: give `model`, too"),
        (
            "{name: r, to: [{pool: chat, model: m, lora_path: '/a b'}]}",
            "[0].to[0].lora_path: must be 1 to 256",
        ),
        (
            "{name: r, to: [{pool: chat, model: m, lora_path: /a}, {pool: next}], spill: true}",
            "[0]: `spill` cannot be used with `lora_path`: the cost of a request is unknown where",
        ),
        ("{name: a b, to: [{pool: chat}]}", "[0].name: must be 1 to 63 letters"),
        ("{name: r, to: [{pool: chatt}]}", "[0].to[0].pool: there is no pool chatt: there"),
        ("{name: r, to: [{pool: chat, weight: -1}]}", "[0].to[0].weight: must be at least 0"),
        ("{name: r, to: [{pool: chat, weight: .nan}]}", "[0].to[0].weight: must be"),
        ("{name: r, to: [{pool: chat}, {pool: chat}]}", "[0].to[1]: is in this list twice"),
        (
            "{name: r, to: [{pool: chat}, {pool: next, weight: 0}], fallbacks: [{pool: chat}]}",
            "[0].fallbacks[0]: is the target itself",
        ),
        ("routes", "[0]: must be a mapping of keys"),
    ],
)
def test_every_wrong_entry_is_told(folder: Folder, entry: str, problem: str) -> None:
    told = folder.issues(routes(entry))[0]
    assert told.startswith(f"conf.yaml:{FIRST_LINE}: routes{problem}")


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        ("refuse: No.", ": give one of to and refuse"),
        ("spill: true", ": spill: there must be another pool in `to`"),
        ("fallbacks: [{pool: x}]", ".fallbacks[0].pool: there is no pool x: there are chat, next"),
        ("fallbacks: [{pool: chat}]", ".fallbacks[0]: is the target itself"),
        (
            "fallbacks: [{pool: next, on: [context]}, {pool: next}]",
            ".fallbacks[1]: is in this list twice",
        ),
        (
            "fallbacks: [{pool: next, on: [slow]}]",
            ".fallbacks[0].on[0]: must be one of 'no_backend', 'overload', 'context' or",
        ),
        (
            "fallbacks: [{pool: next}, {pool: next}, {pool: next}, {pool: next}, {pool: next}, ]",
            ".fallbacks: must have at",
        ),
        ("mirror: {pool: x, share: 1}", ".mirror.pool: there is no pool"),
        ("mirror: {pool: chat, share: 1}", ".mirror: is a target of this"),
        ("mirror: {pool: next, share: 0}", ".mirror.share: must be above"),
        ("mirror: {pool: next}", ".mirror.share: is required"),
        ("sticky: ip", ".sticky: must be one of"),
        ("match: {model: []}", ".match.model: must have at least 1 entry"),
        ("match: {model: 'a*b'}", ".match.model[0]: must be 1 to 256"),
        ("match: {modle: a}", ".match.modle: unknown key; did you mean"),
        ("match: {path: v1}", ".match.path[0]: must be a path such as"),
        ("match: {tenant: x}", ".match.tenant[0]: there is no tenant x: there are research"),
        (
            "match: {class: [batch, fast]}",
            ".match.class[1]: there is no class fast: there are interactive, standard, batch",
        ),
        ("match: {headers: {authorization: x}}", ".match.headers: authorization holds keys"),
        ("match: {headers: {x-a: x, X-A: y}}", ".match.headers: x-a is given twice"),
        ("match: {headers: {}}", ".match.headers: must have at least 1"),
        ("match: {headers: {x: 'a*b'}}", ".match.headers.x: must be 1"),
        ("match: {prompt_tokens: {}}", ".match.prompt_tokens: give"),
        (
            "match: {prompt_tokens: {min: 5, max: 5}}",
            ".match.prompt_tokens: max must be above min, which is 5",
        ),
        ("match: {needs: sound}", ".match.needs[0]: must be one of"),
        ("match: {label: simple}", ".match.label: nobody gives labels: there is no `classifier`"),
        ("match: {needs: [tools, audio], lacks: tools}", ".match: needs and lacks both have tools"),
        (
            "match: {hours: {zone: Europe/Berlim}}",
            ".match.hours.zone: must be a time zone such as Europe/Berlin or UTC, got",
        ),
        ("match: {hours: {zone: Europe}}", ".match.hours.zone: must be"),
        ("match: {hours: {zone: ../x}}", ".match.hours.zone: must be"),
        ("match: {hours: {from: '9:00'}}", ".match.hours.from: must be"),
        ("match: {hours: {from: '09:00', to: '09:00'}}", ".match.hours: from and to must differ"),
        ("match: {hours: {days: monday}}", ".match.hours.days[0]: must"),
        ("set: {headers: {X-Penstock-A: b}}", ".set.headers: x-penstock-a cannot be set here"),
        ("set: {body: {defaults: {model: b}}}", ".set.body.defaults: model cannot have a default"),
        ("set: {body: {defaults: {a: [1]}}}", ".set.body.defaults.a"),
        ("set: {body: {defaults: {a: .inf}}}", ".set.body.defaults: a must be a finite number"),
    ],
)
def test_every_wrong_value_is_told(folder: Folder, keys: str, problem: str) -> None:
    told = folder.issues(routes(f"{{name: r, {TO}, {keys}}}"))[0]
    assert told.startswith(f"conf.yaml:{FIRST_LINE}: routes[0]{problem}")


def test_names_are_unique(folder: Folder) -> None:
    (told,) = folder.issues(routes(f"{{name: r, {TO}}}", f"{{name: r, {TO}}}"))
    assert told.startswith("conf.yaml:9: routes[1].name: route name 'r' is taken by routes[0]")


def test_all_that_is_wrong_is_told_at_once(folder: Folder) -> None:
    text = routes(
        "{name: r, match: {tenant: [x, y]}, to: [{pool: p}]}", "{name: q, to: [{pool: z}]}"
    )
    assert sorted(each.partition(": there")[0] for each in folder.issues(text)) == [
        "conf.yaml:8: routes[0].match.tenant[0]",
        "conf.yaml:8: routes[0].match.tenant[1]",
        "conf.yaml:8: routes[0].to[0].pool",
        "conf.yaml:9: routes[1].to[0].pool",
    ]


def test_one_fallback_of_a_split_may_be_one_of_its_targets(folder: Folder) -> None:
    text = routes("{name: r, to: [{pool: chat}, {pool: next}], fallbacks: [{pool: chat}]}")
    assert len(folder.load(text).settings.routes) == 1


def test_there_is_a_limit(folder: Folder) -> None:
    text = routes(*[f"{{name: r{number}, {TO}}}" for number in range(1_025)])
    assert "must have at most 1024 entries" in folder.issues(text)[0]


def test_an_adapter_has_one_path_in_a_pool(folder: Folder) -> None:
    one = "{name: a, match: {model: x}, to: [{pool: chat, model: m, lora_path: /one}]}"
    same = "{name: b, match: {model: y}, to: [{pool: chat, model: m, lora_path: /one}]}"
    elsewhere = "{name: c, match: {model: z}, to: [{pool: next, model: m, lora_path: /two}]}"
    folder.load(routes(one, same, elsewhere))
    other = "{name: d, to: [{pool: chat, model: m, lora_path: /two}]}"
    (problem,) = folder.issues(routes(one, same, other))
    assert "routes[2].to[0].lora_path: the pool chat has another path for m: /one" in problem


def test_values_of_headers_that_are_set_are_not_shown(folder: Folder) -> None:
    secret = "s3cret"
    loaded = folder.load(routes(f"{{name: r, {TO}, set: {{headers: {{x-key: {secret}}}}}}}"))
    assert secret not in render(loaded)
    assert secret not in str(as_json(loaded))
    (told,) = folder.issues(
        routes(f'{{name: r, {TO}, set: {{headers: {{x-key: "{secret}\\n"}}}}}}')
    )
    assert "[0].set.headers.x-key: must be 1 to 1,024 characters" in told
    assert secret not in told
