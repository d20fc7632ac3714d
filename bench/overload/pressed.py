"""The pressed half of the panel: far too many calls, floods, and what else one does to others."""

from dataclasses import replace
from itertools import chain
from math import inf
from typing import Final

from penstock.bench.overload.calls import Clients
from penstock.bench.overload.mixes import ENGINES, H100, MIXES, Mix
from penstock.bench.overload.ordinary import CHATS, LONG, TWO, sizes
from penstock.bench.overload.scene import HIGH, VICTIM, Scene
from penstock.bench.overload.site import Site
from penstock.bench.overload.source import PATIENT, Open, Steady

FLOODED: Final = ("uniform", "kv", "decode")
# Of the capacity. Two tenants have a half each.
VICTIMS_SHARE: Final = 0.2
OF_VICTIM: Final = Clients(high_share=0.0, tenant=VICTIM)
ATTACKER: Final = Clients(high_share=0.0, tenant="attacker")
LOW: Final = Clients(high_share=0.0)
URGENT: Final = Clients(high_share=1.0)
# They know that their prompts take long.
LONG_S: Final = 30.0
SLOW: Final = replace(OF_VICTIM, patience_s=LONG_S)
TURN_S: Final = 30.0  # when answers become long

KV: Final = MIXES["kv"]
SHORT: Final = Mix("short", KV.profile, sizes(200, 2_000, 20, 60), 80.0)
ENDLESS: Final = Mix("endless", KV.profile, sizes(200, 2_000, 1_500, 3_000), 8.0)
STUFFED: Final = Mix("stuffed", KV.profile, sizes(40_000, 40_000, 50, 150), 2.0)
CROWD: Final = Mix("crowd", H100, sizes(30_000, 30_000, 50, 150), 3.2)


def _site(mix: str) -> Site:
    return Site((MIXES[mix].profile,) * ENGINES)


def _load(mix: str, load: float) -> Scene:
    """A tenth is of the high class."""
    source = Open(MIXES[mix], load, Clients())
    return Scene(f"{mix}_{load:g}", (source,), _site(mix), length_s=60.0, pressed=True)


def _classes(mix: str) -> Scene:
    """The high class sends 0.3 of the capacity, and all together twice that what there is."""
    source = Open(MIXES[mix], 2.0, Clients(high_share=0.15))
    name = f"classes_{mix}"
    return Scene(name, (source,), _site(mix), length_s=60.0, pressed=True, victim=HIGH)


def _beside(name: str, mix: str, *attacks: Open) -> Scene:
    """A victim beside attacks."""
    victim = Open(MIXES[mix], VICTIMS_SHARE, OF_VICTIM)
    return Scene(name, (victim, *attacks), _site(mix), 8.0, 38.0, pressed=True, victim=VICTIM)


PRESSED: Final = (
    *chain.from_iterable((_load(mix, 2.0), _load(mix, 5.0)) for mix in MIXES),
    *(_load(mix, 1.1) for mix in ("uniform", "skewed", "kv")),
    _classes("uniform"),
    _classes("kv"),
    *(_beside(f"flood_{mix}", mix, Open(MIXES[mix], 10.0, ATTACKER)) for mix in FLOODED),
    # About 60,000 tokens of answers each.
    _beside("giants", "kv", Open(KV, 0.03, replace(ATTACKER, choices=64))),
    replace(
        _beside(
            "surprises",
            "kv",
            Open(SHORT, 0.5, ATTACKER, ((0.0, TURN_S),)),
            Open(ENDLESS, 4.0, ATTACKER, ((TURN_S, inf),)),
        ),
        warm_s=TURN_S,
        length_s=60.0,
    ),
    Scene(
        "starved_40k",
        (Open(STUFFED, 0.1, SLOW), Open(KV, 5.0, ATTACKER)),
        _site("kv"),
        8.0,
        68.0,
        pressed=True,
        victim=VICTIM,
        deadline_s=LONG_S,
    ),
    Scene(
        "crowds_90",
        (Open(CROWD, 1.2, Clients(high_share=0.0, tenants=90)),),
        warm_s=8.0,
        length_s=68.0,
        pressed=True,
    ),
    Scene(
        "long_low",
        (Open(MIXES["decode"], 0.5, URGENT), Open(LONG, 2.0, LOW)),
        warm_s=8.0,
        length_s=38.0,
        pressed=True,
        victim=HIGH,
    ),
    Scene(
        "long_62_attacked",
        (
            Open(LONG, 0.62, replace(PATIENT, tenant=VICTIM)),
            Open(CHATS, 1.0 / CHATS.capacity_per_s, replace(PATIENT, tenant="chats")),
            Steady(20, 1, 2.5, replace(PATIENT, tenant="attacker")),
        ),
        TWO,
        length_s=140.0,
        pressed=True,
        victim=VICTIM,
        deadline_s=LONG_S,
    ),
)
