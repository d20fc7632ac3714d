"""Who asks the admin port, and what they may do there."""

from enum import StrEnum
from typing import NamedTuple


class Access(StrEnum):
    """What somebody may do. VIEW: read everything, and change nothing."""

    VIEW = "view"
    FULL = "full"


class Kind(StrEnum):
    """By what they are known."""

    TOKEN = "token"  # noqa: S105 - a word, as a header of each request
    PAGE = "page"  # a session of the page, which was got with a token
    LOCAL = "local"  # there is no token, and they are on this machine


class Asker(NamedTuple):
    """One who may ask. `address`: of their connection."""

    kind: Kind
    access: Access
    address: str
