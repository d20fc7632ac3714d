"""Requests whose bodies parsers end at different places: lengths, codings, chunks."""

from tests.http.case import Case
from tests.http.message import CHUNKED, HIDDEN, raw, refused


def _lengths() -> list[Case]:
    """CL.TE, TE.CL, CL.0, duplicate and odd lengths."""
    odd = {
        "list": b"5, 5",
        "list of different ones": b"5, 6",
        "plus": b"+5",
        "minus": b"-5",
        "hex": b"0x5",
        "underscore": b"1_0",
        "empty": b"",
        "two words": b"5 5",
        "2^63": b"9223372036854775808",
        "2^64": b"18446744073709551616",
        "2^64+5": b"18446744073709551621",
        "2^32 and far": b"4294967301000000",
        "full-width": "５".encode(),
        "arabic": "٥".encode(),
        "superscript": "²".encode(),
        "float": b"5.0",
        "exponent": b"5e0",
        "comma": b"5,",
        "leading comma": b",5",
        "quoted": b'"5"',
        "semicolon": b"5;a=b",
        "octal": b"0o5",
        "L": b"5L",
    }
    cases = [
        refused(f"length {name}", raw(b"abcde" + HIDDEN, b"Content-Length: " + value, framed=True))
        for name, value in odd.items()
    ]
    five, zero = b"Content-Length: 5", b"Content-Length: 0"
    many = b"Content-Length: %d" % (5 + len(HIDDEN))
    te0, data = b"0\r\n\r\n" + HIDDEN, b"abcde" + HIDDEN
    both = {
        "CL.TE": (five, CHUNKED),
        "TE.CL": (CHUNKED, five),
        "CL.TE whole": (many, CHUNKED),
        "TE.CL zero": (CHUNKED, zero),
        "CL.TE case": (b"content-LENGTH: 5", b"TRANSFER-encoding: CHUNKED"),
        "CL.TE far apart": (five, b"X-A: b", b"X-B: c", CHUNKED),
        "TE.CL nominated length": (CHUNKED, five, b"Connection: content-length"),
        "CL.TE nominated coding": (five, CHUNKED, b"Connection: transfer-encoding"),
    }
    cases += [refused(n, raw(te0, *f, framed=True)) for n, f in both.items()]
    twice = {
        "two equal lengths": (five, five),
        "two lengths": (five, zero),
        "zero and a length": (zero, five),
        "two lengths of other case": (five, b"content-length: 6"),
    }
    cases += [refused(n, raw(data, *f, framed=True)) for n, f in twice.items()]
    return cases


def _codings() -> list[Case]:
    """TE.TE: whatever is not exactly one `chunked`."""
    body = b"0\r\n\r\n" + HIDDEN
    unsupported = {
        "unknown": b"xchunked",
        "chunked and identity": b"chunked, identity",
        "identity and chunked": b"identity, chunked",
        "gzip and chunked": b"gzip, chunked",
        "twice": b"chunked, chunked",
        "quoted": b'"chunked"',
        "single-quoted": b"'chunked'",
        "identity": b"identity",
        "parameter": b"chunked;q=1",
        "empty": b"",
        "comma": b"chunked,",
        "leading comma": b", chunked",
        "two words": b"chunked chunked",
        "latin": "chunkéd".encode("latin-1"),
        "long s": "ſhunked".encode(),
        "high space": b"chunked\xa0",
        "backslash": b"chun\\ked",
    }
    cases = [
        refused(
            f"coding {name}", raw(body, b"Transfer-Encoding: " + value, framed=True), status=501
        )
        for name, value in unsupported.items()
    ]
    cases.append(refused("two codings", raw(body, CHUNKED, CHUNKED, framed=True), status=501))
    cases.append(
        refused(
            "chunked and then identity",
            raw(body, CHUNKED, b"Transfer-Encoding: identity", framed=True),
            status=501,
        )
    )
    length = b"Content-Length: %d" % len(body)
    malformed = {
        "coding with a vertical tab": b"Transfer-Encoding: \x0bchunked",
        "coding with a form feed": b"Transfer-Encoding: \x0cchunked",
        "coding with a NUL": b"Transfer-Encoding: chunked\x00",
        "coding with a CR": b"Transfer-Encoding: chunked\r",
        "coding, space before colon": b"Transfer-Encoding : chunked",
        "coding, tab before colon": b"Transfer-Encoding\t: chunked",
        "coding, space before name": b" Transfer-Encoding: chunked",
        "coding, tab before name": b"\tTransfer-Encoding: chunked",
        "coding folded": b"Transfer-Encoding:\r\n chunked",
        "coding folded by a tab": b"Transfer-Encoding:\r\n\tchunked",
        "coding after a fold": b"X-A: b\r\n Transfer-Encoding: chunked",
        "coding after a bare LF": b"X-A: b\nTransfer-Encoding: chunked",
        "coding after a bare CR": b"X-A: b\rTransfer-Encoding: chunked",
        "coding, name with a NUL": b"Transfer-Encoding\x00: chunked",
        "coding, name not ASCII": "Transfer-Encod\u0131ng: chunked".encode() + b"\r\n: x",
        "coding without a colon": b"Transfer-Encoding chunked",
    }
    cases += [refused(n, raw(body, f, length, framed=True)) for n, f in malformed.items()]
    over10 = raw(body, CHUNKED, framed=True, line=b"POST /v1/completions HTTP/1.0")
    both = raw(body, CHUNKED, length, framed=True, line=b"POST /v1/completions HTTP/1.0")
    kept = raw(body, CHUNKED, b"Connection: keep-alive", framed=True, line=b"POST /raw HTTP/1.0")
    cases += [
        refused("coding over 1.0", over10),
        refused("coding and length over 1.0", both),
        refused("coding over 1.0 kept alive", kept),
    ]
    return cases


def _chunks() -> list[Case]:
    """TERM.EXT, EXT.TERM, and sizes that parsers read differently."""
    end = b"0\r\n\r\n" + HIDDEN
    bad = {
        "size with a sign": b"+5\r\nhello\r\n",
        "size negative": b"-5\r\nhello\r\n",
        "size with a prefix": b"0x5\r\nhello\r\n",
        "size with an underscore": b"1_0\r\nhello\r\n",
        "no size": b"\r\nhello\r\n",
        "size of nothing but an extension": b";a=b\r\nhello\r\n",
        "size over 64 bits": b"10000000000000005\r\nhello\r\n",
        "size of 17 f": b"fffffffffffffffff\r\nhello\r\n",
        "size not ASCII": "５\r\nhello\r\n".encode(),
        "size and garbage": b"5g\r\nhello\r\n",
        "data longer than said": b"5\r\nhello!\r\n",
        "data shorter than said": b"6\r\nhello\r\n",
        "bare LF after a size": b"5\nhello\r\n",
        "bare CR after a size": b"5\rhello\r\n",
        "LF CR after a size": b"5\n\rhello\r\n",
        "two CR after a size": b"5\r\r\nhello\r\n",
        "bare LF after data": b"5\r\nhello\n",
        "bare CR after data": b"5\r\nhello\r",
        "nothing after data": b"5\r\nhello",
        "other bytes after data": b"5\r\nhelloXX",
        "LF in an extension": b"5;a\nb\r\nhello\r\n",
        "CR in an extension": b"5;a\rb\r\nhello\r\n",
        "LF ends an extension": b"5;a\nhello\r\n",
        "NUL in an extension": b"5;a=\x00\r\nhello\r\n",
        "LF in a quoted extension": b'5;a="\n"\r\nhello\r\n',
        "CR LF in a quoted extension": b'5;a="\r\n"\r\nhello\r\n',
        "huge extension": b"5;" + b"x" * 300_000 + b"\r\nhello\r\n",
        "flood of extensions": b"1;xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\r\nx\r\n" * 3_000,
        "space after a size": b"5 \r\nhello\r\n",
        "tab after a size": b"5\t\r\nhello\r\n",
        "space before a size": b" 5\r\nhello\r\n",
        "vertical tab after a size": b"5\x0b\r\nhello\r\n",
    }
    cases = [refused(f"chunks, {n}", raw(b + end, CHUNKED, framed=True)) for n, b in bad.items()]
    last = {
        "huge trailer": b"0\r\nx: " + b"y" * 100_000 + b"\r\n\r\n",
        "many trailers": b"0\r\n" + b"x: y\r\n" * 2_000 + b"\r\n",
        "trailer without a colon": b"0\r\nno trailer\r\n\r\n",
        "trailer, space before colon": b"0\r\nx : y\r\n\r\n",
        "trailer with a bare LF": b"0\r\nx: y\nz: a\r\n\r\n",
        "trailer with a bare CR": b"0\r\nx: y\rz: a\r\n\r\n",
        "trailer with a NUL": b"0\r\nx: \x00\r\n\r\n",
        "trailer ends by LF": b"0\r\nx: y\r\n\n",
        "last chunk with LF": b"0\n\n",
        "last chunk then LF": b"0\r\n\n",
        "last chunk with garbage": b"0\r\nX",
        "trailer folded": b"0\r\nx: y\r\n z\r\n\r\n",
    }
    cases += [
        refused(f"chunks, {n}", raw(b"5\r\nhello\r\n" + b + HIDDEN, CHUNKED, framed=True))
        for n, b in last.items()
    ]
    return cases


FRAMING = [*_lengths(), *_codings(), *_chunks()]
