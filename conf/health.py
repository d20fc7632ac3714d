"""The settings of health: probes, ejections, and backends that are new."""

from pydantic import Field

from penstock.conf.kinds import Count, DurationS, OptionalWaitS, Section


class DeepProbeSettings(Section):
    """The deep probe: it asks a backend for one token."""

    interval_s: DurationS = Field(default=10.0, description="Time between two deep probes.")
    timeout_s: DurationS = Field(
        default=4.0,
        description="Time that a deep probe may take before it counts as failed. Raise it if a"
        " busy engine needs longer for its first token.",
    )
    fall: Count = Field(default=2, description="Failed deep probes in a row that eject a backend.")


class NewcomerSettings(Section):
    """A backend that is added to a running pool, or is another engine than before."""

    judge: bool = Field(
        default=True,
        description="Whether it is compared with the others of its pool, and ejected if it is shown"
        " to be worse (docs/health.md).",
    )
    clients_min: int = Field(
        default=2,
        ge=1,
        le=2,
        description="How many clients must see that it is worse. 1: one is enough; needed if all"
        " requests come from one client, which then decides alone.",
    )


class HealthSettings(Section):
    """When a backend is ejected and when it returns."""

    interval_s: DurationS = Field(default=2.0, description="Time between two probes of a backend.")
    timeout_s: DurationS = Field(default=1.0, description="A probe that takes longer has failed.")
    fall: Count = Field(default=3, description="Failed probes in a row that eject a backend.")
    rise: Count = Field(
        default=2,
        description="Passed probes in a row that let an ejected backend return. A deep probe"
        " must pass, too.",
    )
    slow_start_s: OptionalWaitS = Field(
        default=30.0,
        description="Time until a returning or new backend gets its full share. It starts with 10 %"
        " of a ready backend's requests in flight, and at least one.",
    )
    newcomers: NewcomerSettings = NewcomerSettings()
    deep: DeepProbeSettings = DeepProbeSettings()
