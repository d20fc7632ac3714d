"""The settings of traces: where spans go, and which requests have them."""

from typing import Annotated

from pydantic import Field

from penstock.conf.kinds import RELATIVE, FilePath, HeaderLines, Name, Section, TracesUrl

Ratio = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]


class TracingSettings(Section):
    """Spans of requests and attempts, sent by OTLP over HTTP (docs/tracing.md)."""

    otlp_endpoint: TracesUrl | None = Field(
        default=None,
        description="Receiver of the spans, such as http://otel-collector:4318/v1/traces. Without a"
        " path it is /v1/traces. null: no spans, and the clients' `traceparent` passes as it is.",
    )
    ratio: Ratio = Field(
        default=0.01,
        description="Share of the traces that begin here which is recorded. A request whose client"
        " has begun a trace follows the client's decision.",
    )
    forced_ratio: Ratio = Field(
        default=0.1,
        description="Largest share of its own requests that a tenant, or an address without"
        " tenants, can have recorded by the sampled flag of `traceparent`. 0: none.",
    )
    forced_per_minute: Annotated[int, Field(ge=0, le=600_000)] = Field(
        default=600,
        description="Most requests in a minute that all clients together can have recorded by that"
        " flag. It is counted in steps of six seconds. In each, a client that has had as many as"
        " are left gets no more.",
    )
    headers_file: FilePath | None = Field(
        default=None,
        description="File with headers that the receiver asks for, each a line such as"
        " `authorization: Bearer KEY`." + RELATIVE,
    )
    headers: HeaderLines | None = Field(
        default=None,
        description="The lines themselves. Prefer `headers_file` or `${VAR}`.",
    )
    service_name: Name = Field(
        default="penstock", description="The `service.name` of the spans' resource."
    )
