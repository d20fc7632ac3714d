"""The corpus, headers: what of the client's may go on, and what never does."""

from tests.http.case import Case
from tests.http.message import accepted, body_of, raw

# A value of the client's that must not arrive. Upstream all values are lower-cased first.
FORGED = b"forged-7e1"
# Read by backends as the proxy's word, or as framing.
OWN = [
    b"X-Penstock-Tenant",
    b"X-Penstock-Backend",
    b"X-Vllm-Priority",
    b"X-Data-Parallel-Rank",
    b"X-Forwarded-For",
    b"X-Forwarded-Host",
    b"X-Forwarded-Proto",
    b"X-Forwarded-Port",
    b"X-Forwarded-Prefix",
    b"X-Forwarded-Client-Cert",
    b"X-Real-IP",
    b"Forwarded",
]
HOP_BY_HOP = [
    b"Keep-Alive",
    b"Proxy-Connection",
    b"Proxy-Authorization",
    b"Proxy-Authenticate",
    b"TE",
    b"Trailer",
    b"Upgrade",
    b"HTTP2-Settings",
]
LOOK_ALIKES = [
    *(name.replace(b"-", b"_") for name in OWN if b"-" in name),
    *(name.replace(b"-", b".") for name in OWN if b"-" in name),
    b"X-Penstock_Tenant",
    b"X_Penstock.Tenant",
    b"X_DATA-parallel_RANK",
    b"Transfer_Encoding",
    b"Transfer.Encoding",
    b"Content_Length",
    b"Content.Length",
    b"Proxy_Authorization",
    b"X_Request_Id",
    b"X_Api_Key",
    b"X.Api.Key",
]


def _dropped(name: bytes) -> Case:
    told = f"dropped: {name.decode()}"
    send = raw(body_of(told), name + b": " + FORGED)
    return Case(told, (send,), (200,), (body_of(told),), never=(FORGED,), correct=True)


def _nominated(name: str, *fields: bytes, **wanted: object) -> Case:
    told = f"nominated: {name}"
    options = {"correct": True, **wanted}
    return Case(told, (raw(body_of(told), *fields),), (200,), (body_of(told),), **options)  # type: ignore[arg-type]


def _kept(*field: bytes) -> Case:
    name, value = field
    told = f"kept: {name.decode()}"
    case = accepted(told, raw(body_of(told), name + b": " + value))
    return Case(**{**vars(case), "headers": ((name.lower(), value),)})


HEADERS = [
    *(_dropped(name) for name in (*OWN, *HOP_BY_HOP, *LOOK_ALIKES)),
    _nominated(
        "a header of the client's", b"Connection: x-mine", b"X-Mine: " + FORGED, never=(FORGED,)
    ),
    _nominated(
        "in a list of odd spaces",
        b"Connection: ,close-not ,\t X-MINE\t,",
        b"X-Mine: " + FORGED,
        never=(FORGED,),
    ),
    _nominated(
        "in the second Connection",
        b"Connection: keep-alive",
        b"Connection: x-mine",
        b"X-Mine: " + FORGED,
        never=(FORGED,),
    ),
    _nominated("the length", b"Connection: content-length"),
    _nominated("the host", b"Connection: host"),
    _nominated(
        "the key",
        b"Connection: authorization",
        b"Authorization: Bearer k",
        headers=((b"authorization", b"Bearer k"),),
    ),
    _nominated(
        "the other key", b"Connection: x-api-key", b"X-Api-Key: k", headers=((b"x-api-key", b"k"),)
    ),
    _nominated(
        "the type",
        b"Connection: content-type",
        b"Content-Type: application/json",
        headers=((b"content-type", b"application/json"),),
    ),
    _nominated(
        "the coding of the body",
        b"Connection: content-encoding",
        b"Content-Encoding: identity",
        headers=((b"content-encoding", b"identity"),),
    ),
    _nominated(
        "what penstock writes",
        b"Connection: x-request-id, x-forwarded-for, via",
        b"X-Request-Id: id-1",
        headers=((b"x-request-id", b"id-1"),),
    ),
    _kept(b"Authorization", b"Bearer sk-1"),
    _kept(b"X-Api-Key", b"sk-2"),
    _kept(b"Accept", b"text/event-stream"),
    _kept(b"User-Agent", b"OpenAI/Python 3.52.0"),
    _kept(b"X-Stainless-Retry-Count", b"0"),
    _kept(b"Anthropic-Version", b"2023-06-01"),
    _kept(b"X-Session-Id", b"s-1"),
    _kept(b"Cookie", b"a=b"),
    _kept(b"Traceparent", b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
    _kept(b"X_Custom_Name", b"v"),
    _kept(b"X.Custom.Name", b"v"),
    _kept(b"X-Odd", b'caf\xe9 "quoted" {json:1}'),
    Case(
        "ids: a client's own is used",
        (raw(body_of("ids 1"), b"X-Request-Id: mine-1"),),
        (200,),
        (body_of("ids 1"),),
        headers=((b"x-request-id", b"mine-1"),),
        correct=True,
    ),
    Case(
        "ids: one that is too long is not",
        (raw(body_of("ids 2"), b"X-Request-Id: " + b"f" * 129),),
        (200,),
        (body_of("ids 2"),),
        never=(b"f" * 129,),
        correct=True,
    ),
    Case(
        "ids: one with blanks is not",
        (raw(body_of("ids 3"), b"X-Request-Id: " + FORGED + b" and more"),),
        (200,),
        (body_of("ids 3"),),
        never=(FORGED,),
        correct=True,
    ),
    Case(
        "via: ours comes after the client's",
        (raw(body_of("via"), b"Via: 1.0 edge"),),
        (200,),
        (body_of("via"),),
        headers=((b"via", b"1.0 edge, 1.1 penstock"),),
        correct=True,
    ),
]
