"""The settings of where a pool finds its backends."""

from typing import Self

from pydantic import Field, model_validator

from penstock.conf.kinds import (
    RELATIVE,
    BackendUrl,
    DnsName,
    FilePath,
    Name,
    Networks,
    PortNumber,
    Section,
    Selector,
    Server,
)


class KubernetesSettings(Section):
    """Which pods of a cluster are backends: those of a Service, or those with some labels."""

    namespace: Name | None = Field(
        default=None, description="Namespace of the Service or the pods. null: penstock's own."
    )
    service: Name | None = Field(
        default=None,
        description="Name of a Service: its endpoints are the backends. The role needs get, list"
        " and watch on endpointslices of discovery.k8s.io. null: pods by `selector`.",
    )
    selector: Selector | None = Field(
        default=None,
        description="Labels of the pods, such as `app=vllm,model=llama`. The role needs get, list"
        " and watch on pods. The label penstock/weight is a pod's weight. null: a Service.",
    )
    port: PortNumber | Name | None = Field(
        default=None,
        description="Number or name of the port. null: the first one of the Service or the pod.",
    )
    zone: str | None = Field(
        default=None,
        max_length=253,
        description="penstock's own zone, such as `${ZONE}`. A pod of a Service in another zone"
        " counts as having half its weight: it gets requests when those of this zone are busier."
        " null: all zones are alike.",
    )
    api_url: BackendUrl | None = Field(
        default=None,
        description="The API server, such as http://127.0.0.1:8001 of `kubectl proxy`. null: the"
        " one of penstock's own cluster.",
    )

    @model_validator(mode="after")
    def _has_a_source(self) -> Self:
        if (self.service is None) == (self.selector is None):
            raise ValueError("give either service or selector")
        if self.zone and self.service is None:
            raise ValueError("zone is for service only: a pod does not tell its zone")
        return self


class DiscoverSettings(Section):
    """Where the backends of a pool are found. Those that are listed stay beside them."""

    file: FilePath | None = Field(
        default=None,
        description="YAML or JSON file with a list of backends, or of Prometheus's `targets`. It is"
        " looked at each second. null: no file." + RELATIVE,
    )
    dns: DnsName | None = Field(
        default=None,
        description="Name of which every address is a backend (IPv4, or IPv6 if it has no other),"
        " with a port, such as vllm.llm.svc.cluster.local:8000; or whose SRV records name them,"
        " such as _http._tcp.vllm.llm.svc.cluster.local. It must be a full name: no search domain"
        " is added."
        " https:// before the name selects https. null: none.",
    )
    kubernetes: KubernetesSettings | None = Field(
        default=None, description="Pods of a Kubernetes cluster. null: none."
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
        if [self.file, self.dns, self.kubernetes].count(None) != 2:
            raise ValueError("name one source: file, dns or kubernetes")
        if self.resolver is not None and self.dns is None:
            raise ValueError("resolver is for dns only: remove it")
        return self
