"""A section of the configuration: a mapping with checked keys, the base of all settings."""

from typing import Final

from pydantic import BaseModel, ConfigDict, ValidationInfo, field_validator

from penstock.conf.units import plain, unit_of

# Ends the description of a key that names a file.
RELATIVE: Final = " A relative path starts at the folder of the configuration file."


class Section(BaseModel):
    """A mapping of the configuration."""

    # Strict: a converted value would be a mistake that shows up later as something else.
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, hide_input_in_errors=True)

    @field_validator("*", mode="before")
    @classmethod
    def _without_unit(cls, value: object, info: ValidationInfo) -> object:
        """Convert `2s` at a key in seconds to 2.0, and `32MiB` at one in bytes to 33554432."""
        unit = unit_of(info.field_name or "")
        if unit is None or not isinstance(value, str):
            return value
        number = plain(value, unit)
        return value if number is None else number
