"""The heap's limits, where the C library has them."""

import platform

from penstock.proxy.process.pressure import keep_pages


def test_glibc_takes_both_limits() -> None:
    assert keep_pages() is (platform.libc_ver()[0] == "glibc")
