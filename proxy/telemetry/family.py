"""What is said of one metric family."""

from typing import Literal, NamedTuple


class Family(NamedTuple):
    """Describes one family. Its name gets the prefix `penstock_`."""

    kind: Literal["counter", "gauge", "histogram", "info"]
    labels: tuple[str, ...]
    unit: str
    text: str
    look: str
