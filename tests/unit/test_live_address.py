"""To which addresses of workers a gateway may connect."""

from __future__ import annotations

from ipaddress import ip_address

import pytest

from tenure.domain.outbound import LiveAddress, LiveNetworks, is_from_this_machine, peer_ip, problem_of, refusal_of


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("127.0.0.1:8474", "127.0.0.1:8474"),
        ("10.1.2.3:1", "10.1.2.3:1"),
        ("[::1]:65535", "[::1]:65535"),
        ("[2001:DB8:0:0::1]:80", "[2001:db8::1]:80"),
        ("worker-1.Pool_a.svc.:8474", "worker-1.pool_a.svc:8474"),
        ("localhost:8474", "localhost:8474"),
    ],
)
def test_an_address_of_a_worker_is_read(text: str, read: str) -> None:
    assert str(LiveAddress.parse(text)) == read


@pytest.mark.parametrize(
    "text",
    [
        *("", "host", "host:", ":80", "host:0", "host:08", "host:65536"),
        *("host:80 ", "a b:80", "a\x1b[31m:80", "ho\nst:80", f"{'a' * 254}:80", "\u00e4:80"),
        *("http://host:80", "host:80/path", "user@host:80", "a,b:80"),
        *("unix:80", "UNIX:80", "unix:/run/docker.sock", "unix:///run/x:1"),
        *("dns:80", "dns:///host:80", "ipv4:80", "xds:80"),
        *("1.2.3:80", "0x7f000001:80", "0177.0.0.1:80", "2130706433:80", "::1:80", "[::1%eth0]:80", "[1.2.3.4]:80"),
    ],
)
def test_invalid_address_is_refused(text: str) -> None:
    assert problem_of(text)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("0.0.0.0:80", "unspecified"),
        ("[::]:80", "unspecified"),
        ("169.254.169.254:80", "link-local"),
        ("[fe80::1]:80", "link-local"),
        ("[::ffff:169.254.169.254]:80", "link-local"),
        ("[64:ff9b::a9fe:a9fe]:80", "link-local"),
        ("[fd00:ec2::254]:80", "cloud metadata"),
        ("100.100.100.200:80", "cloud metadata"),
        ("168.63.129.16:80", "cloud metadata"),
        ("224.0.0.1:80", "multicast"),
        ("[ff02::1]:80", "multicast"),
        ("255.255.255.255:80", "broadcast"),
    ],
)
def test_special_addresses_are_never_allowed(text: str, kind: str) -> None:
    assert f"({kind})" in str(problem_of(text))
    ip = ip_address(text.rpartition(":")[0].strip("[]"))
    assert f"({kind})" in str(refusal_of(ip, allows_loopback=True))  # also as the address of a name


@pytest.mark.parametrize("ip", ["127.0.0.1", "127.0.1.1", "::1", "::ffff:127.0.0.1"])
def test_loopback_is_for_workers_of_this_machine(ip: str) -> None:
    assert refusal_of(ip_address(ip), allows_loopback=True) is None
    assert refusal_of(ip_address(ip), allows_loopback=False) == f"{ip_address(ip)} is refused (loopback)"


@pytest.mark.parametrize(
    ("peer", "ip", "is_local"),
    [
        ("ipv4:127.0.0.1:4711", "127.0.0.1", True),
        ("ipv6:%5B::1%5D:4711", "::1", True),
        ("ipv6:[2001:db8::7]:4711", "2001:db8::7", False),
        ("ipv6:[::ffff:10.0.0.7]:4711", "10.0.0.7", False),
        ("ipv4:10.0.0.7:4711", "10.0.0.7", False),
        ("unix:/run/x", "None", False),
        ("ipv4:nonsense:1", "None", False),
    ],
)
def test_the_address_of_a_connection_is_read(peer: str, ip: str, is_local: bool) -> None:
    assert str(peer_ip(peer)) == ip
    assert is_from_this_machine(peer_ip(peer)) is is_local


@pytest.mark.parametrize(
    ("allowed", "ip", "is_allowed"),
    [
        ((), "10.9.9.9", True),
        (("session",), "10.0.0.7", True),
        (("session",), "::ffff:10.0.0.7", True),
        (("session",), "10.0.0.8", False),
        (("10.0.0.0/29",), "10.0.0.1", True),
        (("10.0.0.0/29",), "10.0.0.9", False),
        (("10.0.0.0/29", "session"), "10.0.0.7", True),
        (("2001:db8::/32",), "10.0.0.7", False),
        (("2001:db8::/32",), "2001:db8::1", True),
    ],
)
def test_the_setting_limits_the_networks(allowed: tuple[str, ...], ip: str, is_allowed: bool) -> None:
    assert LiveNetworks(allowed).allow(ip_address(ip), ip_address("10.0.0.7")) is is_allowed


def test_a_connection_without_an_address_matches_no_address() -> None:
    assert not LiveNetworks(("session",)).allow(ip_address("10.0.0.7"), None)


@pytest.mark.parametrize("text", ["sessions", "10.0.0.1/8", "host", ""])
def test_invalid_network_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="network"):
        LiveNetworks((text,))
