"""The system-call filter, asked by an interpreter of its own language: what the kernel would answer to which call.

A program inside cannot tell the filter's refusal from the kernel's own; this can.
"""

from __future__ import annotations

import errno
import os
import struct
import sys

import pytest

from services.tools.sandbox.limits import SandboxUnavailable
from services.tools.sandbox.seccomp import (
    DENIED,
    RESERVING_CALLS,
    RESERVING_REQUESTS,
    compile_filter,
    system_call_number,
)

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="programs are sandboxed on Linux only")

_ALLOWED, _REFUSED = 0x7FFF0000, 0x00050000
_ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_I386, _X32 = 0x40000003, 0x40000000
UPPER = 1 << 32
LOAD, RETURN, JUMP = 0x20, 0x06, 0x05
COMPARES = {0x15: "==", 0x25: ">", 0x35: ">=", 0x45: "&"}
AND = 0x54


class Filter:
    """`asked(call, arguments)` is the error number that a call is refused with, 0 when it is let through."""

    def __init__(self, program: bytes) -> None:
        self._code = list(struct.iter_unpack("=HBBI", program))

    def action_for(self, call: str | int, *arguments: int, architecture: int | None = None) -> int:
        number = system_call_number(call) if isinstance(call, str) else call
        assert number is not None, f"{call} is not a system call here"
        own = _ARCHITECTURES[os.uname().machine] if architecture is None else architecture
        padded = (*arguments, *[0] * (6 - len(arguments)))
        verdict = self._run(struct.pack("=IIQ6Q", number, own, 0, *padded))
        if verdict == _ALLOWED:
            return 0
        assert verdict & 0xFFFF0000 == _REFUSED, f"{call} would not be refused but end the program: {verdict:#x}"
        return verdict & 0xFFFF

    def _run(self, data: bytes) -> int:
        at, accumulator = 0, 0
        while True:
            code, if_true, if_false, value = self._code[at]
            at += 1
            if code == RETURN:
                return int(value)
            if code == LOAD:
                (accumulator,) = struct.unpack_from("=I", data, value)
            elif code == AND:
                accumulator &= value
            elif code == JUMP:
                at += value
            else:
                at += if_true if _holds(COMPARES[code], accumulator, value) else if_false


def _holds(compare: str, one: int, other: int) -> bool:
    return {"==": one == other, ">": one > other, ">=": one >= other, "&": bool(one & other)}[compare]


@pytest.fixture(scope="module")
def rules() -> Filter:
    if os.uname().machine not in _ARCHITECTURES:
        pytest.skip(f"the interpreter here does not know how {os.uname().machine} names itself to filters")
    try:
        return Filter(compile_filter())
    except SandboxUnavailable as unavailable:
        pytest.skip(str(unavailable))


def test_denied_call_is_refused_without_a_kill(rules: Filter) -> None:
    there = [name for name in DENIED if system_call_number(name) is not None]
    assert len(there) > 55
    assert {name: rules.action_for(name) for name in there} == dict.fromkeys(there, errno.EPERM)


def test_calls_of_ordinary_programs_are_allowed(rules: Filter) -> None:
    for name in (
        "read",
        "openat",
        "mmap",
        "execve",
        "futex",
        "wait4",
        "kill",
        "pidfd_open",
        "memfd_create",
        "getrandom",
    ):
        assert rules.action_for(name) == 0, name


@pytest.mark.parametrize("name", ["statmount", "listmount", "open_tree_attr", "mount_setattr", "memfd_secret"])
def test_calls_unknown_to_the_library_are_refused_by_number(rules: Filter, name: str) -> None:
    assert rules.action_for(name) == errno.EPERM


@pytest.mark.parametrize("upper", [0, UPPER, 0xDEADBEEF << 32])
def test_space_is_taken_by_writing_and_in_no_other_way(rules: Filter, upper: int) -> None:
    for name in RESERVING_CALLS:
        assert rules.action_for(name, 3, 1) == errno.EOPNOTSUPP, name
    for name, request in RESERVING_REQUESTS.items():
        assert rules.action_for("ioctl", 3, upper | request) == errno.EOPNOTSUPP, name
    assert rules.action_for("ioctl", 3, 0x801C581F) == 0  # reading attributes


@pytest.mark.parametrize("name", ["shmget", "semget", "msgget"])
def test_system_v_objects_are_refused(rules: Filter, name: str) -> None:
    assert rules.action_for(name) == errno.EPERM


def test_calls_by_another_abi_do_not_exist(rules: Filter) -> None:
    for number in (20, 26, 0x1000):
        assert rules.action_for(number, architecture=_I386) == errno.ENOSYS
    if os.uname().machine == "x86_64":
        for name in ("getpid", "ptrace", "unshare"):
            assert rules.action_for(_X32 | (system_call_number(name) or 0)) == errno.ENOSYS


@pytest.mark.parametrize("upper", [0, UPPER, 0xDEADBEEF << 32])
def test_the_upper_half_of_an_argument_changes_nothing(rules: Filter, upper: int) -> None:
    """The kernel takes these arguments as `int`: it would not see the upper half, so the filter must not."""
    assert rules.action_for("prctl", upper | 1, 0) == errno.EPERM
    for request in (0x5412, 0x541C, 0x5423):
        assert rules.action_for("ioctl", 0, upper | request) == errno.EPERM
    assert rules.action_for("prlimit64", 0, upper | 4, 0x1000) == errno.EPERM
    assert rules.action_for("clone", upper | 0x10000011) == errno.EPERM
    assert rules.action_for("socket", upper | 2, 1) == errno.EAFNOSUPPORT


def test_neighbours_of_denied_calls_are_allowed(rules: Filter) -> None:
    assert rules.action_for("prctl", 15) == 0  # a thread's name
    assert rules.action_for("ioctl", 0, 0x5401) == 0  # is it a terminal?
    assert rules.action_for("prlimit64", 0, 4, 0) == 0  # reading the limit
    assert rules.action_for("prlimit64", 0, 7, 0x1000) == 0  # open files
    assert rules.action_for("clone", 0x01200011) == 0  # fork
    assert rules.action_for("clone", 0x003D0F00) == 0  # a thread
    assert rules.action_for("socket", 1, 1) == 0
    assert rules.action_for("socketpair", 1, 1) == 0


@pytest.mark.parametrize("family", [0, 2, 10, 16, 17, 30, 38, 40, 44, 45])
def test_there_are_local_sockets_only(rules: Filter, family: int) -> None:
    assert rules.action_for("socket", family, 1) == errno.EAFNOSUPPORT
    assert rules.action_for("socketpair", family, 1) == errno.EAFNOSUPPORT


@pytest.mark.parametrize("bit", [17, 25, 26, 27, 28, 29, 30])
def test_no_flag_of_clone_makes_a_namespace(rules: Filter, bit: int) -> None:
    assert rules.action_for("clone", 1 << bit | 17) == errno.EPERM
    assert rules.action_for("clone", 0xFFFFFFFF) == errno.EPERM


def test_clone3_sends_libc_back_to_clone(rules: Filter) -> None:
    assert rules.action_for("clone3") == errno.ENOSYS


def test_a_network_gives_ip_and_routes_but_no_other_family() -> None:
    if os.uname().machine not in _ARCHITECTURES:
        pytest.skip(f"the interpreter here does not know how {os.uname().machine} names itself to filters")
    rules = Filter(compile_filter(network=True))
    for name in ("socket", "socketpair"):
        answers = {family: rules.action_for(name, family, 1, 0) for family in range(50)}
        assert {family for family, answer in answers.items() if answer == 0} == {
            1,
            2,
            10,
            16,
        }
        assert set(answers.values()) == {0, errno.EAFNOSUPPORT}
        assert {rules.action_for(name, 16, 3, protocol) for protocol in range(1, 32)} == {errno.EAFNOSUPPORT}
        assert rules.action_for(name, UPPER | 40, 1, 0) == errno.EAFNOSUPPORT  # vsock; the kernel drops the upper half
    assert {rules.action_for(name) for name in DENIED if system_call_number(name) is not None} == {errno.EPERM}
