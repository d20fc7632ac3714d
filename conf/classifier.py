"""The settings of the classifier, which gives requests the labels that routes may ask for."""

from typing import Annotated

from pydantic import Field

from penstock.conf.kinds import ClassifierUrl, Section


class ClassifierSettings(Section):
    """A server of yours that says what kind of question a request is (docs/routes.md)."""

    url: ClassifierUrl = Field(
        description="Where questions go, such as http://10.0.0.9:9000/classify. The beginning and"
        " the end of clients' texts are sent there. Without a path it is /."
    )
    deadline_ms: Annotated[float, Field(ge=1, le=10_000, allow_inf_nan=False)] = Field(
        default=100.0,
        description="Time for an answer. A request waits for it no longer, and goes on without a"
        " label.",
    )
    text_bytes: Annotated[int, Field(ge=64, le=65_536)] = Field(
        default=2_048,
        description="The most that is sent of the last user message. Of a longer one the first and"
        " the last half of this are sent.",
    )
    cache_entries: Annotated[int, Field(ge=1, le=1_000_000)] = Field(
        default=10_000,
        description="How many labels are remembered, for ten minutes each. They are kept by a hash"
        " of the text, and take some 250 bytes each.",
    )
