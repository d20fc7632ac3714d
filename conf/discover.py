"""The settings of where a pool finds its backends."""

from typing import Self

from pydantic import Field, model_validator

from penstock.conf.kinds import RELATIVE, DnsName, FilePath, Networks, Section, Server


class DiscoverSettings(Section):
    """Where the backends of a pool are found. Those that are listed stay beside them."""

    file: FilePath | None = Field(
        default=None,
        description="YAML or JSON file with a list of backends, or of Prometheus's `targets`. It is"
        " looked at each second. null: no file." + RELATIVE,
    )
    dns: DnsName | None = Field(
        default=None,
        description="Name of which every address is a backend, with a port, such as"
        " vllm.llm.svc.cluster.local:8000; or whose SRV records name them, such as"
        " _http._tcp.vllm.llm.svc.cluster.local. It must be a full name: no search domain is added."
        " With https:// before it the backends are https. null: none.",
    )
    resolver: Server | None = Field(
        default=None,
        description="DNS server that is asked, such as 127.0.0.1:8600. null: the system's.",
    )
    allow: Networks = Field(
        default=(),
        description="Networks in which found backends may be, such as 10.0.0.0/8. An empty list:"
        " any address but those of this machine and link-local ones.",
    )

    @model_validator(mode="after")
    def _has_a_source(self) -> Self:
        if (self.file is None) == (self.dns is None):
            raise ValueError("name one source: file or dns")
        return self
