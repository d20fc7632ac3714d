"""The members of a whole JSON answer that dialects read. `whole.py` finds them."""

import msgspec

from penstock.balancing.field_values import NO_FIELD


class Whole(msgspec.Struct):
    """The members. NO_FIELD where the answer has none; a list has none of them."""

    id: msgspec.Raw = NO_FIELD
    object: msgspec.Raw = NO_FIELD
    type: msgspec.Raw = NO_FIELD
    status: msgspec.Raw = NO_FIELD
    stop_reason: msgspec.Raw = NO_FIELD
    usage: msgspec.Raw = NO_FIELD
    meta: msgspec.Raw = NO_FIELD
    error: msgspec.Raw = NO_FIELD
    choices: msgspec.Raw = NO_FIELD
    output: msgspec.Raw = NO_FIELD
    content: msgspec.Raw = NO_FIELD
