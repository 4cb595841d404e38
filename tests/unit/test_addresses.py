"""Which addresses strangers may lead us to."""

from __future__ import annotations

from ipaddress import IPv6Address, ip_address
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenure.domain.outbound import EVERYWHERE, Networks, is_clear_text


@pytest.mark.parametrize(
    ("address", "kind"),
    [
        ("0.0.0.0", "unspecified"),
        ("0.1.2.3", "unspecified"),
        ("127.0.0.1", "loopback"),
        ("127.255.255.254", "loopback"),
        ("10.0.0.1", "private"),
        ("172.31.255.255", "private"),
        ("192.168.0.1", "private"),
        ("169.254.169.254", "link-local"),
        ("100.64.0.1", "carrier-grade NAT"),
        ("100.100.100.200", "carrier-grade NAT"),
        ("168.63.129.16", "cloud metadata"),
        ("192.0.0.192", "reserved"),
        ("198.18.0.1", "reserved"),
        ("192.88.99.1", "reserved"),
        ("240.0.0.1", "reserved"),
        ("255.255.255.255", "reserved"),
        ("224.0.0.1", "multicast"),
        ("203.0.113.7", "documentation"),
        ("::", "unspecified"),
        ("::1", "loopback"),
        ("::7f00:1", "reserved"),  # ::127.0.0.1, as addresses were embedded before
        ("::ffff:127.0.0.1", "loopback"),
        ("::ffff:169.254.169.254", "link-local"),
        ("::ffff:0:7f00:1", "reserved"),
        ("64:ff9b::a9fe:a9fe", "link-local"),
        ("64:ff9b:1::a00:1", "private"),
        ("2002:7f00:1::", "tunnel"),
        ("2002:5db8:d822::", "tunnel"),
        ("2001:0:4136:e378:8000:63bf:3fff:fdd2", "tunnel"),
        ("2001:db8::1", "documentation"),
        ("2001:10::1", "reserved"),
        ("100::1", "reserved"),
        ("fc00::1", "private"),
        ("fd00:ec2::254", "private"),
        ("fec0::1", "private"),
        ("fe80::1", "link-local"),
        ("ff02::1", "multicast"),
    ],
)
def test_private_addresses_are_refused_by_kind(address: str, kind: str) -> None:
    assert Networks().refusal(ip_address(address)) == kind
    assert Networks(EVERYWHERE).refusal(ip_address(address)) is None


@pytest.mark.parametrize("address", ["93.184.216.34", "1.1.1.1", "2606:2800:220:1::1", "::ffff:1.1.1.1"])
def test_public_addresses_are_allowed(address: str) -> None:
    assert Networks().refusal(ip_address(address)) is None


@given(st.ip_addresses())
def test_every_special_network_of_python_is_refused(address: Any) -> None:
    if Networks().allow(address):
        inner = address.ipv4_mapped if isinstance(address, IPv6Address) else None
        assert (inner or address).is_global
        assert not address.is_loopback
        assert not address.is_link_local
        assert not address.is_multicast


@given(st.ip_addresses(v=4))
def test_ipv6_spellings_of_an_address_are_equal(address: Any) -> None:
    networks = Networks(["10.1.0.0/16"])
    for prefix in ("::ffff:0:0", "64:ff9b::"):
        spelt = IPv6Address(int(IPv6Address(prefix)) + int(address))
        assert networks.refusal(spelt) == networks.refusal(address)


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST.", "a.localhost", "127.0.0.1", "::1"])
def test_names_of_this_machine_need_not_be_resolved(host: str) -> None:
    assert not Networks().may_reach_host(host)
    assert Networks(EVERYWHERE).may_reach_host(host)


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://crm.example/x", True),
        ("HTTP://10.0.0.1:80/", True),
        (" http://localhost.example", True),
        ("http://[2001:db8::1]/", True),
        ("http://127.0.0.1@crm.example/", True),
        ("https://crm.example/", False),
        ("http://localhost:8080/", False),
        ("http://127.0.0.7/", False),
        ("http://[::1]:1/", False),
        ("", False),
    ],
)
def test_clear_text_to_other_machines_is_recognised(url: str, expected: bool) -> None:
    assert is_clear_text(url) is expected
