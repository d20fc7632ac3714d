"""The kinds of values in the settings: their shapes and their limits.

Nothing is converted: a number is a number, text is text, and `"8080"` in quotes is text. Shapes are
regular expressions, so that the JSON Schema has them, too. `SHAPES` says each of them in words. The
limits are wide. They catch mistakes of unit and sign, not bad choices.
"""

import re
from ipaddress import ip_address, ip_network
from posixpath import normpath
from typing import Annotated, Final, Literal, get_args
from urllib.parse import SplitResult, unquote, urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
)
from pydantic_core import InitErrorDetails

from penstock.conf.units import plain, unit_of

# The paths that are served anyway: the key `paths` adds others. Under another name such a path
# would be forwarded unread, past the limits of tenants.
_SERVED: Final = frozenset(
    {"/", "/health", "/invocations", "/inference/v1/generate", "/tokenize", "/detokenize"}
    | {"/pooling", "/score", "/classify", "/rerank", "/generative_scoring"}
    | {"/v1/chat/completions", "/v1/chat/completions/batch", "/v1/completions", "/v1/responses"}
    | {"/v1/messages", "/v1/messages/count_tokens", "/v1/embeddings", "/v1/models", "/v1/realtime"}
    | {"/v1/score", "/v1/rerank", "/v1/audio/transcriptions", "/v1/audio/translations"}
    | {"/v2/embed", "/v2/rerank"}
)
_BELOW: Final = ("/v1/models/", "/v1/responses/")


def leads_to_some(prefix: str) -> bool:
    """Whether a served path begins so."""
    return any(each.startswith(prefix) for each in (*_SERVED, *_BELOW))


def is_served(path: str) -> bool:
    """Whether servers take it for one of these paths, however it is written."""
    plain = "/" + normpath(unquote(path)).lstrip("/")
    return plain in _SERVED or plain.startswith(_BELOW)


NAME: Final = r"^[a-zA-Z0-9][a-zA-Z0-9._-]{0,62}$"
HOST: Final = r"^([a-zA-Z0-9._-]+|[0-9a-fA-F.]*:[0-9a-fA-F.]*:[0-9a-fA-F:.]*(%[a-zA-Z0-9._-]+)?)$"
WORD: Final = r"^[^\s\x00-\x1f\x7f-\x9f]{1,256}$"
HEADER: Final = r"^[!#$%&'*+.^_`|~0-9a-zA-Z-]{1,128}$"
RUNBOOK_URL: Final = r"^https?://[\x21-\x7e]{1,400}$"
ORIGIN: Final = r"^(\*|[a-z][a-z0-9+.-]*://[a-zA-Z0-9._:\[\]-]+(:\*)?)$"
# Visible ASCII is ! to ~. The class leaves out # and ?.
PROXIED_PATH: Final = r"^(GET|POST) /[!-\"$->@-~]{0,1023}$"
PREFIX: Final = r"^(/[A-Za-z0-9._~!$&'()*+,;=:@%-]{1,255}){0,16}/?$"
# What requests bring themselves, with the first words of usual paths.
_OF_API: Final = re.compile(r"/v1(/(chat|completions|embeddings|messages|models|responses).*)?/*$")
NETWORK: Final = r"^[0-9a-fA-F.:]{2,45}(/[0-9]{1,3})?$"
SECRET_CHARS_MAX: Final = 4096
SECRET: Final = rf"^[!-~]{{1,{SECRET_CHARS_MAX}}}$"
_LABELS: Final = r"[a-zA-Z0-9_-]{1,63}(\.[a-zA-Z0-9_-]{1,63}){0,30}\.?"
DNS_NAME: Final = rf"^(https?://)?(_[a-zA-Z0-9-]{{1,62}}\._tcp\.{_LABELS}|{_LABELS}:[0-9]{{1,5}})$"
SELECTOR: Final = r"^[a-zA-Z0-9!][a-zA-Z0-9._/=!,() -]{0,511}$"
SERVER: Final = r"^([0-9.]{7,15}|\[[0-9a-fA-F:.]{2,45}\]):[0-9]{1,5}$"
PORT_MAX: Final = 65_535
DIGEST: Final = r"^[0-9a-fA-F]{64}$"
# Header lines, as they stand in a request: `name: value`.
HEADER_LINES_MAX: Final = 16
HEADER_LINES_CHARS_MAX: Final = 16_384
HEADER_LINE: Final = r"[!#$%&'*+.^_`|~0-9a-zA-Z-]{1,128}: ?[!-~]([ -~]*[!-~])?"
HEADER_LINES: Final = rf"^{HEADER_LINE}(\n{HEADER_LINE}){{0,{HEADER_LINES_MAX - 1}}}\n?$"
# They frame the request, or tell what is in it: those are the sender's.
FRAMING: Final = frozenset(
    {"host", "connection", "transfer-encoding", "content-length", "content-type"}
    | {"content-encoding", "expect", "te", "trailer", "upgrade", "accept-encoding"}
)
# Exact text, or a prefix that ends in *. A star alone is the empty prefix.
PATTERN: Final = r"^([^\s*\x00-\x1f\x7f-\x9f]{1,256}\*?|\*)$"
PATH_PATTERN: Final = r"^/[!\"$-)+->@-~]{0,1023}\*?$"
HEADER_PATTERN: Final = r"^([!-)+-~]([ -)+-~]{0,254}[!-)+-~])?|([!-)+-~][ -)+-~]{0,255})?\*)$"
HEADER_VALUE: Final = r"^[!-~]([ -~]{0,1022}[!-~])?$"
SENTENCE: Final = r"^[^\s\x00-\x1f\x7f-\x9f][^\x00-\x1f\x7f-\x9f]{0,255}$"
CLOCK: Final = r"^(([01][0-9]|2[0-3]):[0-5][0-9]|24:00)$"
# A DNS name, or a URI with an authority: a scheme and `://` tell the two apart.
CERTIFICATE_NAME: Final = (
    r"^([a-zA-Z0-9_][a-zA-Z0-9_.-]{0,252}|[a-zA-Z][a-zA-Z0-9+.-]{0,31}://[!-~]{1,2000})$"
)

SHAPES: Final = {
    NAME: "must be 1 to 63 letters, digits, '.', '_' or '-', beginning with a letter or digit",
    HOST: "must be an address or a host name such as 0.0.0.0, :: or localhost,"
    " without scheme, brackets or port",
    WORD: "must be 1 to 256 characters without spaces or control characters",
    HEADER: "must be the name of an HTTP header, such as x-session-id",
    RUNBOOK_URL: "must be a URL such as https://docs.example.com/penstock/runbook.html",
    ORIGIN: "must be * or an origin such as https://chat.example.com or http://localhost:* (any"
    " port), without a path",
    PROXIED_PATH: "must be a method (GET or POST), one space and an exact path such as"
    " 'GET /tokenizer_info', in visible ASCII without '?' and '#'",
    PREFIX: "must be empty or a path such as /llm, without //, '.' and '..'",
    NETWORK: "must be an address or a network such as 10.0.0.0/8 or fd00::/8",
    SECRET: f"must be 1 to {SECRET_CHARS_MAX} characters of visible ASCII without spaces",
    HEADER_LINES: f"must be 1 to {HEADER_LINES_MAX} lines `name: value` of visible ASCII",
    DNS_NAME: "must be NAME:PORT such as vllm.llm.svc.cluster.local:8000, or _port._tcp.NAME",
    SELECTOR: "must be labels such as app=vllm,model=llama",
    SERVER: "must be an address and a port, such as 10.0.0.53:53 or [fd00::53]:53",
    DIGEST: "must be the SHA-256 of a key: 64 hexadecimal digits",
    PATTERN: "must be 1 to 256 characters without spaces, with a * at the end only",
    PATH_PATTERN: "must be a path such as /v1/embeddings, with a * at the end only",
    HEADER_PATTERN: "must be 1 to 256 characters of visible ASCII, with a * at the end only",
    HEADER_VALUE: "must be 1 to 1,024 characters of visible ASCII",
    SENTENCE: "must be one line of 1 to 256 characters",
    CLOCK: "must be a time from '00:00' to '24:00', in quotes",
    CERTIFICATE_NAME: "must be a DNS name or a URI such as spiffe://acme/research, as it stands in"
    " the certificate's subject alternative names; no wildcard, address or e-mail",
}

Policy = Literal[
    "round_robin",
    "random",
    "weighted_random",
    "least_requests",
    "power_of_two",
    "peak_ewma",
    "least_tokens",
    "session",
    "token_cost",
]
POLICY_NAMES: Final[tuple[str, ...]] = get_args(Policy)


# Where credentials belong that stand in a URL.
_OF_POOL: Final = "use api_key_file of the pool"


def _backend_url(text: str) -> str:
    """Check a URL. Returns it without a slash at its end."""
    parts = _url(text)
    return f"{parts.scheme}://{parts.netloc}{_prefix(parts.path)}"


def _prefix(path: str) -> str:
    """Check the path below which an API is. Returns it without a slash at its end."""
    of_api = _OF_API.search(path)
    if of_api is not None:
        raise ValueError(f"must not end in {of_api[0][:40]!r}: drop that, requests bring their own")
    prefix = path.rstrip("/")
    if not re.fullmatch(PREFIX, prefix) or {".", ".."} & set(prefix.split("/")):
        raise ValueError(SHAPES[PREFIX])
    return prefix


def _further_path(entry: str) -> str:
    if is_served(entry.partition(" ")[2]):
        raise ValueError("is a path that is served anyway: remove it")
    return entry


def _network(text: str) -> str:
    """Check a network. Returns it in its usual form, with the length of its prefix."""
    try:
        network = ip_network(text, strict=False)
    except ValueError:
        raise ValueError(SHAPES[NETWORK]) from None
    if "/" in text and ip_address(text.partition("/")[0]) != network.network_address:
        raise ValueError(f"has bits beyond its prefix; did you mean {network}?")
    return str(network)


def _url_to(usual: str, hint: str) -> AfterValidator:
    """A check of a URL. Without a path it gets the usual one."""

    def check(text: str) -> str:
        parts = _url(text, hint)
        path = parts.path if usual == "/" else parts.path.rstrip("/")
        return f"{parts.scheme}://{parts.netloc}{path or usual}"

    return AfterValidator(check)


def _url(text: str, hint: str = _OF_POOL) -> SplitResult:
    """Check a URL of http or https without credentials, query and fragment.

    `hint`: where credentials belong.
    """
    if not re.fullmatch(r"[!-~]{1,2048}", text):
        raise ValueError("must be a URL of visible ASCII, such as http://10.0.0.1:8000")
    if "@" in text:  # also where a password has a slash, so that it looks like a path
        raise ValueError(f"must not hold credentials: {hint}")
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as error:
        raise ValueError(f"is not a URL: {error}") from None
    if parts.scheme not in ("http", "https"):
        raise ValueError("must begin with http:// or https://")
    if not re.fullmatch(HOST, parts.hostname or "") or port == 0 or parts.netloc.endswith(":"):
        raise ValueError("must have a host and may have a port, such as http://10.0.0.1:8000")
    if "?" in text or "#" in text:
        raise ValueError("must not hold a query or a fragment: remove all from '?' or '#' on")
    return parts


def check_secret(secret: SecretStr) -> SecretStr:
    """Refuse text that cannot stand in an Authorization header. The message never shows it."""
    text = secret.get_secret_value()
    if not text:
        raise ValueError("is empty")
    if len(text) > SECRET_CHARS_MAX:
        raise ValueError(f"is longer than {SECRET_CHARS_MAX} characters")
    if not re.fullmatch(r"[!-~]+", text):
        raise ValueError("must be one line of visible ASCII without spaces")
    return secret


def check_header_lines(secret: SecretStr) -> SecretStr:
    """Refuse text that is not a few header lines. The message never shows it."""
    text = secret.get_secret_value()
    lines = text.removesuffix("\n").split("\n")
    if len(text) > HEADER_LINES_CHARS_MAX or len(lines) > HEADER_LINES_MAX:
        raise ValueError(
            f"is too long: at most {HEADER_LINES_MAX} lines and {HEADER_LINES_CHARS_MAX} characters"
        )
    for number, line in enumerate(lines, 1):
        if not re.fullmatch(HEADER_LINE, line):
            raise ValueError(f"line {number} must be `name: value`, in visible ASCII")
        if line.partition(":")[0].lower() in FRAMING:
            raise ValueError(f"line {number}: this header is penstock's own")
    return secret


def _shaped(shape: str) -> AfterValidator:
    """A check of a secret with a shape. The message never shows it."""

    def check(secret: SecretStr) -> SecretStr:
        if not re.fullmatch(shape, secret.get_secret_value()):
            raise ValueError(SHAPES[shape])
        return secret

    return AfterValidator(check)


def _dns_name(text: str) -> str:
    """Check the port of a name, if it has one."""
    port = text.rpartition(":")[2]
    if port.isdigit() and not 1 <= int(port) <= PORT_MAX:
        raise ValueError(f"must have a port from 1 to {PORT_MAX}")
    return text


def _server(text: str) -> str:
    """Check the address and the port of a server."""
    host, _, port = text.rpartition(":")
    try:
        ip_address(host.strip("[]"))
    except ValueError:
        raise ValueError(SHAPES[SERVER]) from None
    return _dns_name(f"{host}:{port}")


def _no_address(text: str) -> str:
    """Refuse an IP address: a certificate holds it in another kind of name."""
    try:
        ip_address(text)
    except ValueError:
        return text
    raise ValueError(SHAPES[CERTIFICATE_NAME])


def fault(at: tuple[str | int, ...], given: str | None, problem: str) -> InitErrorDetails:
    """An error of one entry, for `refuse`, so that its own line is told."""
    context = {"error": ValueError(problem)}
    return {"type": "value_error", "loc": at, "input": given, "ctx": context}


def refuse(title: str, faults: list[InitErrorDetails]) -> None:
    """Raise a ValidationError with all of them, if there are any."""
    if faults:
        raise ValidationError.from_exception_data(title, faults)


def is_loopback(host: str) -> bool:
    """Whether a configured or requested host is this machine itself."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def _hidden(shape: str) -> WithJsonSchema:
    """The JSON Schema of a secret with this shape."""
    return WithJsonSchema(
        {"type": "string", "format": "password", "writeOnly": True, "pattern": shape}
    )


RunbookUrl = Annotated[str, Field(pattern=RUNBOOK_URL)]
BackendUrl = Annotated[str, AfterValidator(_backend_url)]
PathPrefix = Annotated[str, Field(pattern=PREFIX), AfterValidator(_prefix)]
MetricsUrl = Annotated[str, _url_to("/metrics", _OF_POOL)]
TracesUrl = Annotated[str, _url_to("/v1/traces", "use tracing.headers_file")]
ClassifierUrl = Annotated[str, _url_to("/", "a classifier gets none")]
Secret = Annotated[SecretStr, AfterValidator(check_secret), _hidden(SECRET)]
HeaderLines = Annotated[SecretStr, AfterValidator(check_header_lines), _hidden(HEADER_LINES)]
Digest = Annotated[SecretStr, _shaped(DIGEST), _hidden(DIGEST)]
Name = Annotated[str, Field(pattern=NAME)]
Host = Annotated[str, Field(pattern=HOST)]
Network = Annotated[str, Field(pattern=NETWORK), AfterValidator(_network)]
Selector = Annotated[str, Field(pattern=SELECTOR)]
DnsName = Annotated[str, Field(pattern=DNS_NAME), AfterValidator(_dns_name)]
Server = Annotated[str, Field(pattern=SERVER), AfterValidator(_server)]
Word = Annotated[str, Field(pattern=WORD)]
Header = Annotated[str, Field(pattern=HEADER), AfterValidator(str.lower)]
Origin = Annotated[str, Field(pattern=ORIGIN)]
ProxiedPath = Annotated[str, Field(pattern=PROXIED_PATH), AfterValidator(_further_path)]
Pattern = Annotated[str, Field(pattern=PATTERN)]
PathPattern = Annotated[str, Field(pattern=PATH_PATTERN)]
HeaderPattern = Annotated[str, Field(pattern=HEADER_PATTERN)]
# Backends may ask for a key in any header.
HeaderValue = Annotated[SecretStr, _shaped(HEADER_VALUE), _hidden(HEADER_VALUE)]
Sentence = Annotated[str, Field(pattern=SENTENCE)]
ClockTime = Annotated[str, Field(pattern=CLOCK)]
CertificateName = Annotated[str, Field(pattern=CERTIFICATE_NAME), AfterValidator(_no_address)]
FilePath = Annotated[str, Field(min_length=1)]

Port = Annotated[int, Field(ge=0, le=65535)]
PortNumber = Annotated[int, Field(ge=1, le=65535)]
# Beyond this number a float does not count every integer.
AMOUNT_MAX: Final = 2**53  # JSON's numbers are exact up to here
Amount = Annotated[int, Field(ge=1, le=AMOUNT_MAX)]
Count = Annotated[int, Field(ge=1, le=100)]
# A thousandth of an ordinary weight gets hardly any requests. Far below it, shares lose precision.
Weight = Annotated[float, Field(ge=0.001, le=1000, allow_inf_nan=False)]
# In any currency: rupiah, too.
Price = Annotated[float, Field(ge=0, le=1e12, allow_inf_nan=False)]
# From a millisecond to a day. Less is a mistake of unit, more means "never".
DurationS = Annotated[float, Field(ge=0.001, le=86_400, allow_inf_nan=False)]
OptionalWaitS = Annotated[float, Field(ge=0, le=86_400, allow_inf_nan=False)]

# Lists come as lists and become tuples. Their items are as strict as other values.
Headers = Annotated[tuple[Header, ...], Field(strict=False, max_length=16)]
Networks = Annotated[tuple[Network, ...], Field(strict=False, max_length=64)]
Origins = Annotated[tuple[Origin, ...], Field(strict=False, max_length=64)]
BodyFields = Annotated[tuple[Word, ...], Field(strict=False, max_length=16)]
Models = Annotated[tuple[Word, ...], Field(strict=False, max_length=256)]
ProxiedPaths = Annotated[tuple[ProxiedPath, ...], Field(strict=False, max_length=256)]


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
