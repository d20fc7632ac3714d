"""The session key: tells which requests belong to one session, as the configuration says.

It is read in the same pass over the body as the other fields. The decoder has the configured
keys as fields, so a 200 KB prompt is passed over only once. The key may identify a person or a
conversation. So it is compared and hashed, and never logged.
"""

from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import Final

import msgspec

from penstock.balancing.field_values import NO_FIELD, UNREADABLE
from penstock.balancing.fields import Fields

# Longer keys are hashed, so that little is kept for each request.
KEY_BYTES_MAX: Final = 128
# No more than this is hashed. Keys that differ only later share a backend.
HASHED_BYTES_MAX: Final = 4_096

_string: Final = msgspec.json.Decoder(str)
_NUMBER: Final = b"-0123456789"


class SessionKeys:
    """Where session keys may be: in headers, in this order, then in fields of the body."""

    def __init__(
        self,
        headers: Sequence[str],
        body_fields: Sequence[str],
        read: type[Fields] = Fields,
        edited: Iterable[str] = (),
    ) -> None:
        """`read`: the fields that are read in the same pass. `edited`: others that are looked for,
        because routes may set them."""
        self._headers = [name.lower().encode("ascii") for name in headers]
        names = dict.fromkeys([*body_fields, *edited])
        known = {field.encode_name: field.name for field in msgspec.structs.fields(read)}
        # Attributes are numbered, because a configured key need not be a Python name.
        new = {name: f"more_{i}" for i, name in enumerate(names) if name not in known}
        wanted = msgspec.defstruct(
            "SessionFields",
            [(attribute, msgspec.Raw, NO_FIELD) for attribute in new.values()],
            bases=(read,),
            rename={attribute: name for name, attribute in new.items()},
        )
        self._attributes = [(known | new)[name] for name in dict.fromkeys(body_fields)]
        self.decoder: msgspec.json.Decoder[Fields] = msgspec.json.Decoder(wanted)

    def read(self, headers: Sequence[tuple[bytes, bytes]], fields: Fields | None) -> str | None:
        """The first usable key. `fields` is what `decoder` made of the body."""
        for wanted in self._headers:
            for name, value in headers:
                if name == wanted and value:
                    return _bounded(value)
        if fields is not None:
            for attribute in self._attributes:
                raw: msgspec.Raw = getattr(fields, attribute)
                if raw is not NO_FIELD and (key := _text_of(bytes(raw))):
                    return key
        return None


def _text_of(raw: bytes) -> str | None:
    """The text of a string or number. None for any other value or an empty string."""
    if raw[:1] == b'"':
        if len(raw) > KEY_BYTES_MAX:
            return _bounded(raw)
        try:
            return _string.decode(raw) or None
        except UNREADABLE:
            return None  # left for the backend to judge
    return _bounded(raw) if raw[0] in _NUMBER else None


def _bounded(key: bytes) -> str:
    if len(key) <= KEY_BYTES_MAX:
        return key.decode("latin-1")
    return blake2b(key[:HASHED_BYTES_MAX], digest_size=16).hexdigest()
