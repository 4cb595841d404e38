"""Whose request arrives behind proxies: only what a trusted proxy has written counts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.gateway.client_addresses import client_address, limited_place, read_networks

PROXIES = read_networks(["10.0.0.0/8", "fd00::/8", "192.0.2.7"])


@pytest.mark.parametrize(
    ("peer", "forwarded_for", "client"),
    [
        ("203.0.113.5", ["198.51.100.1"], "203.0.113.5"),  # no proxy of ours: anybody may send the header
        ("10.1.2.3", [], "10.1.2.3"),
        ("10.1.2.3", ["198.51.100.1"], "198.51.100.1"),
        ("10.1.2.3", ["198.51.100.1, 203.0.113.5"], "203.0.113.5"),  # what the client said stands first
        ("10.1.2.3", ["198.51.100.1", "203.0.113.5"], "203.0.113.5"),  # some proxies add a header of their own
        ("10.1.2.3", ["203.0.113.5, 10.9.9.9", " 192.0.2.7"], "203.0.113.5"),
        ("10.1.2.3", ["10.9.9.9, 10.8.8.8"], "10.9.9.9"),
        ("10.1.2.3", ["203.0.113.5, unknown"], "10.1.2.3"),
        ("10.1.2.3", ["203.0.113.5, unknown, 10.4.4.4"], "10.4.4.4"),
        ("::ffff:10.1.2.3", ["203.0.113.5:4711"], "203.0.113.5"),
        ("fd00::1", ["[2001:db8::1]:4711"], "2001:db8::1"),
        ("fd00::1", ["::ffff:198.51.100.1"], "198.51.100.1"),
        ("fd00::1", [""], "fd00::1"),
    ],
)
def test_the_last_address_that_is_not_a_proxys_is_the_clients(peer: str, forwarded_for: list[str], client: str) -> None:
    assert client_address(peer, forwarded_for, PROXIES) == client


@given(st.text(max_size=40))
def test_a_client_does_not_choose_its_address(said: str) -> None:
    """Whatever it sends, the proxy writes the client's address behind it."""
    assert client_address("10.1.2.3", [f"{said}, 203.0.113.5"], PROXIES) == "203.0.113.5"
    assert client_address("203.0.113.5", [said], PROXIES) == "203.0.113.5"


@pytest.mark.parametrize(
    ("address", "place"),
    [
        ("198.51.100.1", "198.51.100.1"),
        ("::ffff:198.51.100.1", "198.51.100.1"),
        ("2001:db8::1", "2001:db8::/64"),
        ("2001:db8::ffff:1", "2001:db8::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("unknown", "unknown"),
    ],
)
def test_the_addresses_of_one_customer_have_one_limit(address: str, place: str) -> None:
    assert limited_place(address) == place
