"""The corpus, headers: what of the client's may go on, and what never does."""

from typing import Any

from tests.http.case import Case
from tests.http.message import body_of, raw

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


def _told(name: str, *fields: bytes, **wanted: Any) -> Case:
    body = body_of(name)
    return Case(name, (raw(body, *fields),), (200,), (body,), correct=True, **wanted)


MINE = b"X-Mine: " + FORGED
# Named by Connection: dropped, or written anew.
NOMINATED = {
    "a header of the client's": (b"Connection: x-mine", MINE),
    "in a list of odd spaces": (b"Connection: ,close-not ,\t X-MINE\t,", MINE),
    "in the second Connection": (b"Connection: keep-alive", b"Connection: x-mine", MINE),
    "the length": (b"Connection: content-length",),
    "the host": (b"Connection: host",),
}
# Headers that Connection may not name.
STAYS = {
    "the key": (b"Authorization", b"Bearer k"),
    "the other key": (b"X-Api-Key", b"k"),
    "the type": (b"Content-Type", b"application/json"),
    "the coding of the body": (b"Content-Encoding", b"identity"),
}
KEPT = {
    b"Authorization": b"Bearer sk-1",
    b"X-Api-Key": b"sk-2",
    b"Accept": b"text/event-stream",
    b"User-Agent": b"OpenAI/Python 3.52.0",
    b"X-Stainless-Retry-Count": b"0",
    b"Anthropic-Version": b"2023-06-01",
    b"X-Session-Id": b"s-1",
    b"Cookie": b"a=b",
    b"Traceparent": b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    b"X_Custom_Name": b"v",
    b"X.Custom.Name": b"v",
    b"X-Odd": b'caf\xe9 "quoted" {json:1}',
}
ID = b"X-Request-Id: "
HEADERS = [
    *(
        _told(f"dropped: {name.decode()}", name + b": " + FORGED, never=(FORGED,))
        for name in (*OWN, *HOP_BY_HOP, *LOOK_ALIKES)
    ),
    *(_told(f"nominated: {name}", *fields, never=(FORGED,)) for name, fields in NOMINATED.items()),
    *(
        _told(
            f"nominated: {name}",
            b"Connection: " + field.lower(),
            field + b": " + value,
            headers=((field.lower(), value),),
        )
        for name, (field, value) in STAYS.items()
    ),
    _told(
        "nominated: what penstock writes",
        b"Connection: x-request-id, x-forwarded-for, via",
        ID + b"id-1",
        headers=((b"x-request-id", b"id-1"),),
    ),
    *(
        _told(f"kept: {name.decode()}", name + b": " + value, headers=((name.lower(), value),))
        for name, value in KEPT.items()
    ),
    _told("ids: a client's own is used", ID + b"mine-1", headers=((b"x-request-id", b"mine-1"),)),
    _told("ids: one that is too long is not", ID + b"f" * 129, never=(b"f" * 129,)),
    _told("ids: one with blanks is not", ID + FORGED + b" and more", never=(FORGED,)),
    _told(
        "via: ours comes after the client's",
        b"Via: 1.0 edge",
        headers=((b"via", b"1.0 edge, 1.1 penstock"),),
    ),
]
