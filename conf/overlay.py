"""Values from outside the file: environment variables and flags.

`PENSTOCK_LISTEN__PORT=9000` sets `listen.port`, `PENSTOCK_POOLS__0__POLICY=random` sets
`pools[0].policy`. A key for text takes the value unchanged (empty or `null`: none). Any other key
reads it as YAML, so `PENSTOCK_PATHS='["GET /x"]'` works. Mappings merge with those of the file,
lists replace them.
"""

import re
from collections.abc import Mapping
from typing import Final

from penstock.conf.document import is_unicode, read
from penstock.conf.draft import Draft, Origin
from penstock.conf.keypath import KeyPath, wants_text
from penstock.conf.settings import Settings

PREFIX: Final = "PENSTOCK_"
# The path of the configuration file. The caller reads it.
NOT_SETTINGS: Final = frozenset({"PENSTOCK_CONFIG"})
# Kubernetes sets such variables in every pod for a Service named penstock or penstock-x.
_SERVICE_LINK: Final = re.compile(
    r"PENSTOCK_(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_(TCP|UDP|SCTP)(_\w+)?)?)"
)


def put_environment(draft: Draft, environ: Mapping[str, str]) -> None:
    """Put every PENSTOCK_ variable at the path in its name."""
    named = [
        (_path_of(name), name)
        for name in environ
        if name.startswith(PREFIX) and not _is_foreign(name, environ[name])
    ]
    # Containers before their parts, and list entries in order.
    named.sort(key=lambda entry: (len(entry[0]), [str(step).zfill(8) for step in entry[0]]))
    for path, name in named:
        origin = Origin("env", name)
        if not is_unicode(name):
            draft.report((), "the name of the variable is not valid Unicode", origin)
        else:
            _put_text(draft, path, environ[name], origin)


def put_flags(draft: Draft, flags: Mapping[str, object]) -> None:
    """Put the flags. None means that a flag was not given.

    `backends` replaces all pools by one pool named default. `policy` applies to every pool.
    """
    given = {key: value for key, value in flags.items() if value is not None}
    if urls := given.pop("backends", None):
        _put_backends(draft, urls)
    policy = given.pop("policy", None)
    pools = draft.get(("pools",))
    for index, pool in enumerate(pools if isinstance(pools, list) else ()):
        if policy is not None and isinstance(pool, dict):
            draft.put(("pools", index, "policy"), policy, Origin("flag", "--policy"))
    for key, value in given.items():
        origin = Origin("flag", _flag_of(key))
        path = tuple(key.split("."))
        if isinstance(value, str):
            _put_text(draft, path, value, origin)
        else:
            draft.put(path, value, origin)


def _put_text(draft: Draft, path: KeyPath, text: str, origin: Origin) -> None:
    value: object = text
    if wants_text(Settings, path):
        value = None if text in ("", "null", "~") else text
    else:
        document = read(text)
        for fault in document.faults:
            draft.report((*path, *fault.path), fault.problem, origin)
        value = document.tree
    try:
        draft.put(path, value, origin)
    except IndexError as error:
        draft.report(path, str(error), origin)


def _put_backends(draft: Draft, urls: object) -> None:
    origin = Origin("flag", "--backend")
    pools = urls
    if isinstance(urls, list | tuple):
        backends = [{"name": f"b{index}", "url": url} for index, url in enumerate(urls)]
        pools = [{"name": "default", "backends": backends}]
    draft.put(("pools",), pools, origin)


def _path_of(name: str) -> KeyPath:
    return tuple(
        int(step) if re.fullmatch(r"[0-9]{1,6}", step) else step
        for step in name.removeprefix(PREFIX).lower().split("__")
    )


def _is_foreign(name: str, value: str) -> bool:
    if name in NOT_SETTINGS:
        return True
    # PENSTOCK_PORT=9000 is a user's mistake. Kubernetes' variable of this name is a URL.
    is_url = not name.endswith("_PORT") or name.endswith("_SERVICE_PORT") or "://" in value
    return "__" not in name and is_url and _SERVICE_LINK.fullmatch(name) is not None


def _flag_of(key: str) -> str:
    return "--" + re.sub(r"[._]", "-", key.removeprefix("listen."))
