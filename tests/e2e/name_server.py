"""A DNS server that answers what a test says."""

import asyncio
from typing import Any, Self

import dns.flags
import dns.message
import dns.rcode
import dns.rrset


class NameServer(asyncio.DatagramProtocol):
    """`records`: texts by name and kind. `code`: of every answer, such as SERVFAIL."""

    def __init__(self) -> None:
        self.records: dict[tuple[str, str], list[str]] = {}
        self.ttl_s = 0
        self.code = dns.rcode.NOERROR
        self.silent = False
        self.port = 0
        self._transport: asyncio.DatagramTransport | None = None

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        self._transport, _ = await loop.create_datagram_endpoint(
            lambda: self, local_addr=("127.0.0.1", 0)
        )
        self.port = self._transport.get_extra_info("sockname")[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._transport is not None
        self._transport.close()

    def datagram_received(self, data: bytes, addr: Any) -> None:
        question = dns.message.from_wire(data)
        asked = question.question[0]
        name = asked.name.to_text(omit_final_dot=True)
        answer = dns.message.make_response(question)
        answer.flags |= dns.flags.RA
        answer.set_rcode(self.code)
        if self.code == dns.rcode.NOERROR:
            found = self.records.get((name, asked.rdtype.name))
            if found:
                answer.answer.append(
                    dns.rrset.from_text_list(asked.name, self.ttl_s, "IN", asked.rdtype, found)
                )
            elif not any(each == name for each, _ in self.records):
                answer.set_rcode(dns.rcode.NXDOMAIN)
        if not self.silent:
            assert self._transport is not None
            self._transport.sendto(answer.to_wire(), addr)
