"""Whatever routes are valid, any request ends in exactly one decision, in bounded steps."""

from random import Random
from typing import Any

import pytest
from pydantic import ValidationError

from penstock.balancing.routes.building import table_of
from penstock.balancing.routes.decision import Decision
from penstock.conf.route_doubts import CoverIndex, conditions, covers
from penstock.conf.routes import CAUSES, FALLBACKS_MAX
from tests.unit.balancing.routes.made_up import LABELS, asked, holds, route
from tests.unit.balancing.routes.rows import settings_of

Routes = list[dict[str, Any]]


def valid_routes(rng: Random, most: int) -> Routes:
    """Routes of which each is valid."""
    found: Routes = []
    for number in range(rng.randint(0, most)):
        made = route(rng, f"r{number}")
        try:
            settings_of([made])
        except ValidationError:
            continue
        found.append(made)
    return found


def walk(decision: Decision, rng: Random) -> None:
    """Follow the fall-backs, whatever fails: no place twice, and an end."""
    places = [decision.place(0)]
    step = 0
    while steps := decision.steps(step, rng.choice(CAUSES)):
        step = steps[0]
        place = decision.place(step)
        assert not any(place == earlier for earlier in places)
        places.append(place)
    assert len(places) <= 1 + FALLBACKS_MAX


@pytest.mark.parametrize("seed", range(30))
def test_every_request_ends_in_one_decision(seed: int) -> None:
    rng = Random(seed)
    made = valid_routes(rng, most=rng.choice((1, 5, 40)))
    settings = settings_of(made)
    table, again = table_of(settings.routes), table_of(settings.routes)
    for _ in range(100):
        request = asked(rng)
        first = next((each for each in made if holds(each["match"], request)), None)
        decision, verdicts = table.decide(request), table.explain(request)
        assert [each.name for each in verdicts] == [each["name"] for each in made]
        assert [each.name for each in verdicts if each.taken] == ([first["name"]] if first else [])
        assert all(bool(each.why_not) != each.taken for each in verdicts)
        if first is None:
            assert decision is None
            continue
        assert decision is not None
        assert decision.rule.name == first["name"]
        if "refuse" in first:
            assert decision.target is None
            continue
        assert decision.target is not None
        place = {"pool": decision.target.pool, "model": decision.target.model}
        assert place in [
            {"pool": each["pool"], "model": each["model"]} for each in first["to"] if each["weight"]
        ]
        other = again.decide(request)
        assert other is not None
        assert other.target is not None
        assert other.target == decision.target
        assert other.mirrored == decision.mirrored
        walk(decision, rng)


@pytest.mark.parametrize("seed", range(10))
def test_a_label_is_needed_if_one_would_change_the_decision(seed: int) -> None:
    rng = Random(seed)
    table = table_of(settings_of(valid_routes(rng, most=12)).routes)
    needed = 0
    for _ in range(200):
        request = asked(rng)
        told = set()
        for label in (None, *LABELS):
            request.label = label
            decision = table.decide(request)
            told.add(decision.rule.name if decision is not None else None)
        request.label = None
        assert table.needs_label(request) is (len(told) > 1)
        needed += len(told) > 1
    assert needed < 200


@pytest.mark.parametrize("seed", range(10))
def test_what_covers_leaves_nothing(seed: int) -> None:
    """A false alarm of `penstock check` would be a request that only the later route matches."""
    rng = Random(seed)
    requests = [asked(rng) for _ in range(150)]
    made = valid_routes(rng, most=60)
    given = [conditions(each.match) for each in settings_of(made).routes]
    index = CoverIndex()
    found = 0
    for later, each in enumerate(given):
        covering = [number for number in range(later) if covers(given[number], each)]
        assert index.covering(each) == (covering[0] if covering else None)
        index.add(later, each)
        for number in covering:
            found += 1
            for request in requests:
                if holds(made[later]["match"], request):
                    assert holds(made[number]["match"], request)
    assert found >= len(made) / 4 or len(made) < 20
