"""Where clients connect: address, port, TLS."""

from pydantic import Field

from penstock.conf.kinds import (
    RELATIVE,
    FilePath,
    Host,
    Networks,
    Origins,
    PathPrefix,
    Port,
    Section,
)


class ListenTlsSettings(Section):
    """The TLS certificate of the data port."""

    cert_file: FilePath = Field(
        description="PEM file with the certificate. Intermediate certificates follow it in the"
        " same file." + RELATIVE
    )
    key_file: FilePath = Field(description="PEM file with the private key, not encrypted.")
    client_ca_file: FilePath | None = Field(
        default=None,
        description="PEM file with the certificates that clients' certificates must come from."
        " Clients are then asked for one. It is required unless some tenant has `keys`."
        " null: clients are not asked." + RELATIVE,
    )


class ListenSettings(Section):
    """The data port, where clients connect."""

    host: Host = Field(default="0.0.0.0", description="Address to listen on. `::` listens on IPv6.")  # noqa: S104 - a data port is for others to reach
    port: Port = Field(default=8080, description="TCP port. 0 takes any free port.")
    prefix: PathPrefix = Field(
        default="",
        description="Path prefix of the API, such as `/llm`, for an ingress that forwards it"
        " unstripped. Only paths under it are served. Empty: no prefix.",
    )
    trusted_proxies: Networks = Field(
        default=(),
        description="Addresses and networks of proxies before penstock, such as `10.0.0.0/8`. Their"
        " `X-Forwarded-For` or `Forwarded` tells who the client is. An empty list: who connects is"
        " the client.",
    )
    proxy_protocol: bool = Field(
        default=False,
        description="Require a header of the PROXY protocol (version 1 or 2) on every connection,"
        " and take the client's address from it. Connections without one are closed.",
    )
    cors_origins: Origins = Field(
        default=(),
        description="Web origins whose pages may call the API from a browser. `*` allows every"
        " origin, `http://localhost:*` every port. An empty list switches CORS off.",
    )
    backend_header: bool = Field(
        default=True,
        description="Whether answers name their backend in the header `x-penstock-backend`.",
    )
    reuse_port: bool = Field(
        default=False,
        description="Whether several processes may share the port (SO_REUSEPORT). When one of"
        " them stops, the kernel resets connections that it has not accepted yet.",
    )
    tls: ListenTlsSettings | None = Field(
        default=None, description="Speak TLS 1.2 or newer. null: plain HTTP."
    )
