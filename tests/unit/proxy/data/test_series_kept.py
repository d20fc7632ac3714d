"""The series of tenants and classes that a reload removes vanish, and those of others stay."""

import dataclasses
from typing import Any

from penstock.conf.settings import Settings
from penstock.proxy.telemetry.families import PenstockCollector
from penstock.proxy.telemetry.metrics import LABEL_VALUES_MAX
from tests.unit.proxy.data.playbook import Play, chat, keyed, tenants

STANDARD, SLOW = [{"name": name, "max_wait_s": 60.0} for name in ("standard", "slow")]


def reloads(play: Play, *names: str, classes: Any = (STANDARD, SLOW)) -> None:
    old = play.plane.configuration
    asked = old.settings.model_dump(exclude={"tenants", "admission"}, by_alias=True)
    added = {"tenants": tenants(*names), "admission": {"enabled": True, "classes": list(classes)}}
    settings = Settings.model_validate(asked | added)
    play.plane.use(dataclasses.replace(old, settings=settings))


def told(play: Play, family: str, label: str) -> dict[str, float]:
    """By the value of a label, the counts of a family."""
    collector = PenstockCollector(play.metrics, lambda: play.backends)
    found: dict[str, float] = {}
    for part in collector.collect():
        for sample in part.samples if part.name == f"penstock_{family}" else []:
            found[sample.labels[label]] = found.get(sample.labels[label], 0.0) + sample.value
    return found


def begun(*names: str) -> Play:
    admission = {"enabled": True, "classes": [STANDARD, SLOW]}
    return Play(1, tenants=tenants(*names), admission=admission)


def test_a_tenant_that_is_gone_has_no_series_and_the_others_keep_their_counts() -> None:
    play = begun("one", "two")
    for name in ("one", "two", "two"):
        play.client.sends(chat(head=keyed(name)))
        play.answers("b1")
    play.metrics.rate_limited.add("one")
    play.metrics.rate_limited.add("two")
    assert told(play, "tenant_requests", "tenant") == {"one": 1.0, "two": 2.0}
    reloads(play, "one")
    assert told(play, "tenant_requests", "tenant") == {"one": 1.0}
    assert set(told(play, "tenant_tokens", "tenant")) == {"one"}
    assert told(play, "rate_limited", "tenant") == {"one": 1.0}
    reloads(play, "one", "two")  # back again
    assert told(play, "tenant_requests", "tenant") == {"one": 1.0, "two": 2.0}


def test_a_tenant_that_is_gone_is_told_until_its_last_request_has_ended() -> None:
    play = begun("one", "two")
    play.client.sends(chat(head=keyed("two")))
    play.answers("b1")
    play.client.sends(chat(head=keyed("two")))
    reloads(play, "one")
    assert told(play, "tenant_requests", "tenant") == {"two": 1.0}
    play.answers("b1")
    assert told(play, "tenant_requests", "tenant") == {}
    usage = play.metrics.usage.totals()
    assert [(name, used.requests) for name, _, used in usage] == [("two", 2)]


def test_tenants_that_are_gone_take_no_place_of_new_ones() -> None:
    play = begun("one")
    for number in range(2 * LABEL_VALUES_MAX):
        reloads(play, f"t{number}")
        play.metrics.rate_limited.add(f"t{number}")
    last = f"t{2 * LABEL_VALUES_MAX - 1}"
    assert told(play, "rate_limited", "tenant") == {last: 1.0}


def test_a_class_that_is_gone_has_no_series() -> None:
    play = begun("one")
    for name in ("standard", "slow"):
        play.metrics.shed.add("wait", name)
        play.metrics.admitted.add(name, "yes")
        play.metrics.waited(name, 1.0)
    play.metrics.shed.add("memory", "0")
    reloads(play, classes=[STANDARD])
    assert set(told(play, "shed", "priority")) == {"standard", "0"}
    for family in ("admitted", "queue_wait_seconds"):
        assert set(told(play, family, "priority")) == {"standard"}
    play.metrics.admitted.add("slow", "yes")  # one that had waited
    play.plane.measure(play.loop.now_s + 100.0)
    assert set(told(play, "admitted", "priority")) == {"standard"}
