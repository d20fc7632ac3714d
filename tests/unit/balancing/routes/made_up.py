"""Makes up routes and requests, and decides them in the plainest way."""

from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any, Final

from penstock.balancing.ask import Ask
from penstock.balancing.routes.request import RouteRequest
from penstock.balancing.wants import NEEDS, needs_of
from penstock.conf.route_match import DAYS
from penstock.conf.routes import CAUSES
from penstock.conf.zones import zone_named
from tests.unit.balancing.routes.rows import POOLS

TEXTS: Final = ("a", "ab", "abc", "b", "a/b", "a/")
PATHS: Final = ("/v1/a", "/v1/ab", "/v2/a")
LABELS: Final = ("simple", "hard")
ZONES: Final = ("UTC", "Europe/Berlin", "Asia/Kolkata", "America/New_York")
WEEK_S: Final = 7 * 86_400
# Monday, 2026-10-19 and 2026-03-23, 00:00 UTC: both weeks end as Berlin's clocks are changed.
MONDAYS_S: Final = (1_792_368_000, 1_774_224_000)


def some(rng: Random, values: tuple[str, ...]) -> str | list[str]:
    """One value or a list."""
    chosen = rng.sample(values, rng.randint(1, min(3, len(values))))
    return chosen[0] if len(chosen) == 1 and rng.random() < 0.5 else chosen


def patterns(rng: Random, texts: tuple[str, ...]) -> str | list[str]:
    """Exact texts and prefixes."""
    return some(
        rng, (*texts, *[f"{text}*" for text in texts], "*" if texts[0] != "/v1/a" else "/*")
    )


def match(rng: Random) -> dict[str, Any]:
    """The conditions of one route, few or many."""
    tools = rng.sample(NEEDS, 3)
    tokens = sorted(rng.sample(range(0, 100, 10), 2))
    bounds = [("min", tokens[0]), ("max", tokens[1])]
    clock = [f"{rng.randint(0, 23):02}:{rng.choice((0, 30)):02}" for _ in range(2)]
    made: dict[str, Any] = {
        "model": patterns(rng, TEXTS),
        "path": patterns(rng, PATHS),
        "headers": {rng.choice(("x-a", "X-B")): rng.choice(("a", "a*", "*"))},
        "tenant": some(rng, ("research", "sales")),
        "class": some(rng, ("interactive", "standard", "batch")),
        "stream": rng.random() < 0.5,
        "prompt_tokens": dict(rng.sample(bounds, rng.randint(1, 2))),
        "needs": tools[: rng.randint(1, 2)],
        "lacks": tools[2:],
        "effort": some(rng, ("low", "high")),
        "user": patterns(rng, TEXTS),
        "session": patterns(rng, TEXTS),
        "label": some(rng, LABELS),
        "hours": {"zone": rng.choice(ZONES), "days": some(rng, DAYS)}
        | ({"from": clock[0], "to": clock[1]} if clock[0] != clock[1] else {}),
    }  # fmt: skip
    keys = rng.sample(list(made), rng.choice((0, 1, 1, 1, 2, 2, 3)))
    return {key: made[key] for key in keys}


def route(rng: Random, name: str) -> dict[str, Any]:
    """A route, which may turn out to be refused for what it says twice."""
    made: dict[str, Any] = {"name": name, "match": match(rng)}
    if rng.random() < 0.1:
        return made | {"refuse": "No."}

    def place() -> dict[str, Any]:
        return {"pool": rng.choice(POOLS), "model": rng.choice((None, "m"))}

    made["to"] = [
        place() | {"weight": rng.choice((0, 0.5, 5, 95))} for _ in range(rng.randint(1, 4))
    ]
    made["sticky"] = rng.choice(("session", "user", "tenant", "request"))
    made["fallbacks"] = [
        place() | {"on": rng.choice((None, some(rng, CAUSES)))} for _ in range(rng.randint(0, 4))
    ]
    if rng.random() < 0.2:
        made["mirror"] = place() | {"share": rng.choice((0.05, 0.5, 1.0))}
    return made


def asked(rng: Random) -> RouteRequest:
    """A request."""

    def maybe(values: tuple[str, ...]) -> str | None:
        return rng.choice((*values, None))

    tenant = rng.choice(("", "research", "sales", "stranger"))
    session = maybe(TEXTS)
    headers = {
        name: value
        for name in (b"x-a", b"x-b")
        if (value := rng.choice((None, b"", b"a", b"ab"))) is not None
    }
    ask = Ask(
        rng.choice(PATHS),
        model=maybe((*TEXTS, "abcd", "é")),
        prompt_tokens=rng.randint(0, 100),
        stream=rng.random() < 0.5,
        session=f"{tenant} {session}" if tenant and session else session,
        tenant=tenant,
        client=tenant or rng.choice(("", "10.0.0.1")),
    )
    return RouteRequest(
        ask,
        headers.get,
        service_class=rng.choice(("interactive", "standard", "batch")),
        user=maybe(TEXTS),
        needs=needs_of(rng.sample(NEEDS, rng.randint(0, 4))),
        effort=maybe(("low", "high")),
        label=maybe((*LABELS, "")),
        now_s=rng.choice(MONDAYS_S) + rng.random() * WEEK_S,
        draw=rng.getrandbits(64),
    )


def holds(given: dict[str, Any], request: RouteRequest) -> bool:
    """Whether all conditions hold, as the documentation says it."""
    return all(_holds(key, value, request) for key, value in given.items())


def _holds(key: str, value: Any, request: RouteRequest) -> bool:
    ask = request.ask
    wanted = [value] if isinstance(value, str) else value
    if key in ("model", "path", "user", "session"):
        texts = {
            "model": ask.model,
            "path": ask.path,
            "user": request.user,
            "session": request.session,
        }
        return any(_fits(each, texts[key]) for each in wanted)
    if key == "headers":
        return all(
            _fits(each, request.header(name.lower().encode())) for name, each in value.items()
        )
    if key in ("tenant", "class", "effort", "label"):
        words = {
            "tenant": ask.tenant,
            "class": request.service_class,
            "effort": request.effort,
            "label": request.label,
        }
        return words[key] in wanted
    if key == "stream":
        return bool(ask.stream is value)
    if key == "prompt_tokens":
        return bool(value.get("min", 0) <= ask.prompt_tokens < value.get("max", 1_000))
    if key in ("needs", "lacks"):
        has = [bool(request.needs & needs_of([each])) for each in wanted]
        return all(has) if key == "needs" else not any(has)
    return _in_hours(value, request.now_s)


def _fits(pattern: str, text: str | None) -> bool:
    if text is None:
        return False
    return text.startswith(pattern[:-1]) if pattern.endswith("*") else text == pattern


def _in_hours(hours: dict[str, Any], now_s: float) -> bool:
    zone = zone_named(hours["zone"])
    there = datetime.fromtimestamp(now_s, UTC).astimezone(zone).replace(tzinfo=None)
    clock = f"{there:%H:%M}"
    begin, end = hours.get("from", "00:00"), hours.get("to", "24:00")
    today = f"{there:%a}".lower()
    yesterday = f"{there - timedelta(days=1):%a}".lower()
    if begin < end:
        return today in hours["days"] and begin <= clock < end
    return (today in hours["days"] and clock >= begin) or (
        yesterday in hours["days"] and clock < end
    )
