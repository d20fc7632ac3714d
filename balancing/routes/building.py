"""Makes routes of their settings."""

from collections.abc import Sequence

import msgspec

from penstock.balancing.routes.decision import Changes, Fallback, Mirror, Rule, Target
from penstock.balancing.routes.match import Hours, Match, Patterns
from penstock.balancing.routes.split import Split, seed_of
from penstock.balancing.routes.table import RouteTable
from penstock.balancing.wants import needs_of
from penstock.conf.route_match import HoursSettings, MatchSettings
from penstock.conf.routes import CAUSES, RouteSettings, SetSettings
from penstock.conf.zones import zone_named


def table_of(routes: Sequence[RouteSettings]) -> RouteTable:
    """The table of these routes."""
    adapters = {
        (each.pool, each.model): each.lora_path
        for route in routes
        for each in route.to
        if each.lora_path is not None
    }
    return RouteTable([_rule(each) for each in routes], adapters)


def _rule(route: RouteSettings) -> Rule:
    canary = () if route.canary is None else (route.canary,)
    return Rule(
        route.name,
        _match(route.match),
        tuple([Target(each.pool, each.model) for each in (*route.to, *canary)]),
        split_of(route, 0.0) if route.to else None,
        refusal=route.refuse,
        sticky=route.sticky,
        fallbacks=tuple(
            [
                Fallback(Target(each.pool, each.model), frozenset(each.on or CAUSES))
                for each in route.fallbacks
            ]
        ),
        mirror=_mirror(route),
        changes=_changes(route.changes),
        spill=route.spill,
        canary=bool(canary),
    )


def split_of(route: RouteSettings, percent: float) -> Split:
    """The split of a route of whose requests its canary gets so many."""
    weights = [each.weight for each in route.to]
    if route.canary is not None:
        rest = (100.0 - percent) / sum(weights)
        weights = [*[weight * rest for weight in weights], percent]
    return Split(route.name, weights)


def _mirror(route: RouteSettings) -> Mirror | None:
    mirror = route.mirror
    if mirror is None:
        return None
    seed = seed_of(f"{route.name}\0mirror")  # not the split's: who is copied is drawn again
    return Mirror(
        Target(mirror.pool, mirror.model),
        mirror.share,
        seed,
        forward_authorization=mirror.forward_authorization,
    )


def _match(match: MatchSettings) -> Match:
    tokens = match.prompt_tokens
    headers = (match.headers or {}).items()
    return Match(
        models=_patterns(match.model),
        paths=_patterns(match.path),
        headers=tuple([(name.encode(), Patterns([value])) for name, value in headers]),
        tenants=_words(match.tenant),
        classes=_words(match.service_class),
        stream=match.stream,
        tokens_min=tokens.min if tokens else None,
        tokens_max=tokens.max if tokens else None,
        needs=needs_of(match.needs or ()),
        lacks=needs_of(match.lacks or ()),
        efforts=_words(match.effort),
        users=_patterns(match.user),
        sessions=_patterns(match.session),
        hours=_hours(match.hours) if match.hours else None,
        labels=_words(match.label),
    )


def _patterns(written: tuple[str, ...] | None) -> Patterns | None:
    return Patterns(written) if written is not None else None


def _words(names: tuple[str, ...] | None) -> frozenset[str] | None:
    return frozenset(names) if names is not None else None


def _hours(hours: HoursSettings) -> Hours:
    zone = zone_named(hours.zone)
    assert zone is not None, "settings with an unknown zone are refused"
    return Hours(hours.minutes, zone)


def _changes(changes: SetSettings) -> Changes | None:
    if changes == SetSettings():
        return None
    return Changes(
        tuple(
            [
                (name.encode(), value.get_secret_value().encode())
                for name, value in changes.headers.items()
            ]
        ),
        changes.body.max_tokens_at_most,
        tuple(
            [
                (name.encode(), msgspec.json.encode(value))
                for name, value in changes.body.defaults.items()
            ]
        ),
    )
