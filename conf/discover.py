"""The settings of where a pool finds its backends."""

from typing import Self

from pydantic import Field, model_validator

from penstock.conf.kinds import RELATIVE, FilePath, Networks, Section


class DiscoverSettings(Section):
    """Where the backends of a pool are found. Those that are listed stay beside them."""

    file: FilePath | None = Field(
        default=None,
        description="YAML or JSON file with a list of backends, or of Prometheus's `targets`. It is"
        " looked at each second. null: no file." + RELATIVE,
    )
    allow: Networks = Field(
        default=(),
        description="Networks in which found backends may be, such as 10.0.0.0/8. An empty list:"
        " any address but those of this machine and link-local ones.",
    )

    @model_validator(mode="after")
    def _has_a_source(self) -> Self:
        if self.file is None:
            raise ValueError("name a source: file")
        return self
