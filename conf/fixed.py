"""The settings that need a restart: ports, the folder of what survives, the form of the log."""

from dataclasses import replace
from typing import Final

from penstock.conf.load import Loaded

# Section and key of each setting.
FIXED: Final = (
    ("listen", "host"),
    ("listen", "port"),
    ("listen", "reuse_port"),
    ("admin", "host"),
    ("admin", "port"),
    ("state", "dir"),
    ("log", "messages"),
)


def keep_fixed(new: Loaded, running: Loaded) -> tuple[Loaded, tuple[str, ...]]:
    """`new` with the running values of the settings that need a restart, and their changed keys."""
    settings = new.settings
    origins = dict(new.origins)
    waiting = []
    for section, key in FIXED:
        value = getattr(getattr(running.settings, section), key)
        wanted = getattr(settings, section)
        if getattr(wanted, key) != value:
            kept = wanted.model_copy(update={key: value})
            settings = settings.model_copy(update={section: kept})
            name = f"{section}.{key}"
            origins[name] = running.origins[name]
            waiting.append(name)
    return replace(new, settings=settings, origins=origins), tuple(waiting)
