"""Compiles the filter of system calls that a program in the sandbox may not make.

The filter is the second layer: namespaces hide the host, and the filter keeps a program away from the parts of the
kernel in which ways around namespaces have been found. The filter is a deny-list, because agents run arbitrary
interpreters and wheels. Each refusal returns an error code and does not kill the program, so that a program which only
probes for a feature continues.
"""

from __future__ import annotations

import errno
import tempfile
from typing import Any

from services.tools.sandbox.limits import SandboxUnavailable

DENIED = (
    # Other processes' memory and descriptors.
    *("ptrace", "process_vm_readv", "process_vm_writev", "process_madvise", "pidfd_getfd", "kcmp"),
    # Mounts and roots, in the old and the new interface.
    *("mount", "umount", "umount2", "pivot_root", "chroot", "fsopen", "fsconfig", "fsmount", "fspick"),
    *("move_mount", "open_tree", "open_tree_attr", "mount_setattr", "open_by_handle_at", "name_to_handle_at"),
    *("listmount", "statmount"),
    # Namespaces.
    *("unshare", "setns", "listns"),
    # Shared memory that outlives the process that made it. No limit of a process counts it; only a cgroup does.
    *("shmget", "semget", "msgget"),
    # Keys are not namespaced.
    *("keyctl", "add_key", "request_key"),
    # Large parts of the kernel with many known defects, which agents' programs do not need.
    *("bpf", "perf_event_open", "userfaultfd", "io_uring_setup", "io_uring_enter", "io_uring_register"),
    *("vmsplice", "memfd_secret", "personality", "lookup_dcookie", "modify_ldt", "uselib"),
    *("fanotify_init", "fanotify_mark", "mbind", "move_pages", "migrate_pages", "set_mempolicy", "get_mempolicy"),
    *("set_mempolicy_home_node", "process_mrelease", "nfsservctl", "sysfs", "ustat", "_sysctl"),
    # The machine itself.
    *("kexec_load", "kexec_file_load", "init_module", "finit_module", "delete_module", "reboot"),
    *("swapon", "swapoff", "acct", "syslog", "quotactl", "quotactl_fd", "iopl", "ioperm", "vhangup"),
    *("clock_settime", "clock_adjtime", "settimeofday", "adjtimex", "stime", "sethostname", "setdomainname"),
)
# Calls that reserve disk space without writing. The limit of a file's size does not apply to reserved space, and a
# program could take gigabytes before the next measurement of its workspace. The error code is the one of a file system
# without this operation, so libc writes zeros instead.
RESERVING_CALLS = ("fallocate", "file_setattr")
# The ioctl requests with the same effect: XFS's interface, which most file systems accept, and file attributes, which
# may ask for large extents.
RESERVING_REQUESTS = {
    "XFS_IOC_ALLOCSP": 0x4030580A,
    "XFS_IOC_ALLOCSP64": 0x40305824,
    "FS_IOC_RESVSP": 0x40305828,
    "FS_IOC_RESVSP64": 0x4030582A,
    "FS_IOC_ZERO_RANGE": 0x40305839,
    "FS_IOC_FSSETXATTR": 0x401C5820,
}
_CLONE_NEW = (0x00020000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000)
# TIOCSTI and TIOCLINUX could type into the terminal from which the service was started. TIOCSETD could load a line
# discipline's module into the kernel.
_TIOCSTI, _TIOCLINUX, _TIOCSETD = 0x5412, 0x541C, 0x5423
_PR_SET_PDEATHSIG = 1
_RLIMIT_CORE = 4
_AF_UNIX, _AF_INET, _AF_INET6, _AF_NETLINK = 1, 2, 10, 16
_FAMILIES, _NETLINK_PROTOCOLS = 64, 32  # the kernel knows no family and no protocol from these numbers on
_NETLINK_ROUTE = 0
# The kernel uses only the lower half of an argument that is an `int` in C. A program could bypass a filter that
# compares all 64 bits by setting bits in the upper half; this was verified to work.
_AS_INT = 0xFFFFFFFF
# Numbers of calls that are newer than the oldest supported libseccomp. From number 424 on, all architectures use the
# same numbers.
_NUMBERS = {
    "process_madvise": 440,
    "mount_setattr": 442,
    "quotactl_fd": 443,
    "memfd_secret": 447,
    "process_mrelease": 448,
    "set_mempolicy_home_node": 450,
    "statmount": 457,
    "listmount": 458,
    "open_tree_attr": 467,
    "file_setattr": 469,
    "listns": 470,
}


def compile_filter(*, network: bool = False) -> bytes:
    """Returns the filter as BPF for this machine's architecture. Raises SandboxUnavailable without libseccomp.

    network: also allow sockets for IP, and for reading the machine's addresses and routes (netlink).
    """
    try:
        import pyseccomp
    except (ImportError, OSError, RuntimeError) as error:
        raise SandboxUnavailable(
            f"the system-call filter cannot be built: pyseccomp needs libseccomp.so.2 (package libseccomp2): {error}"
        ) from error
    rules = pyseccomp.SyscallFilter(pyseccomp.ALLOW)
    # No rule below applies to calls through another ABI of the same machine (32 bits, x32), so all of them are refused.
    rules.set_attr(pyseccomp.Attr.ACT_BADARCH, pyseccomp.ERRNO(errno.ENOSYS))
    for name in DENIED:
        _deny(pyseccomp, rules, name)
    _deny_new_namespaces(pyseccomp, rules)
    for request in (_TIOCSTI, _TIOCLINUX, _TIOCSETD):
        _deny(pyseccomp, rules, "ioctl", _equals(pyseccomp, 1, request))
    _deny_reservations(pyseccomp, rules)
    # The launcher set the death signal that ends the program when the service dies. The program must not clear it.
    _deny(pyseccomp, rules, "prctl", _equals(pyseccomp, 0, _PR_SET_PDEATHSIG))
    _keep_core_limit(pyseccomp, rules)
    for name in ("socket", "socketpair"):
        if network:
            _deny_families_but_ip(pyseccomp, rules, name)
        else:
            # Only local sockets are allowed. The network namespace does not confine some families, such as vsock.
            rules.add_rule(pyseccomp.ERRNO(errno.EAFNOSUPPORT), name, pyseccomp.Arg(0, pyseccomp.NE, _AF_UNIX))
    return _exported(rules)


def system_call_number(name: str) -> int | None:
    """Returns the call's number, or None when this architecture has no such call. Needs libseccomp."""
    import pyseccomp

    known: int = pyseccomp.resolve_syscall(pyseccomp.Arch.NATIVE, name)
    return known if known >= 0 else _NUMBERS.get(name)


def _deny(pyseccomp: Any, rules: Any, name: str, *when: Any, error: int = errno.EPERM) -> None:
    """Refuses one call with `error`. Does nothing for a call that this architecture does not have."""
    number = system_call_number(name)
    if number is not None:
        rules.add_rule(pyseccomp.ERRNO(error), number, *when)


def _equals(pyseccomp: Any, argument: int, value: int) -> Any:
    """Returns the condition that an argument which is an `int` to the kernel has this value."""
    return pyseccomp.Arg(argument, pyseccomp.MASKED_EQ, _AS_INT, value)


def _deny_reservations(pyseccomp: Any, rules: Any) -> None:
    for name in RESERVING_CALLS:
        _deny(pyseccomp, rules, name, error=errno.EOPNOTSUPP)
    for request in RESERVING_REQUESTS.values():
        _deny(pyseccomp, rules, "ioctl", _equals(pyseccomp, 1, request), error=errno.EOPNOTSUPP)


def _keep_core_limit(pyseccomp: Any, rules: Any) -> None:
    """Denies changes of the core limit. Its 1 byte keeps crashes from the host's core handler (root); 0 would not."""
    _deny(pyseccomp, rules, "setrlimit", _equals(pyseccomp, 0, _RLIMIT_CORE))
    setting = pyseccomp.Arg(2, pyseccomp.NE, 0)  # a read passes no new limit
    _deny(pyseccomp, rules, "prlimit64", _equals(pyseccomp, 1, _RLIMIT_CORE), setting)


def _deny_families_but_ip(pyseccomp: Any, rules: Any, name: str) -> None:
    for family in set(range(_FAMILIES)) - {_AF_UNIX, _AF_INET, _AF_INET6, _AF_NETLINK}:
        _deny(pyseccomp, rules, name, _equals(pyseccomp, 0, family), error=errno.EAFNOSUPPORT)
    for protocol in set(range(_NETLINK_PROTOCOLS)) - {_NETLINK_ROUTE}:
        netlink = _equals(pyseccomp, 0, _AF_NETLINK), _equals(pyseccomp, 2, protocol)
        _deny(pyseccomp, rules, name, *netlink, error=errno.EAFNOSUPPORT)


def _deny_new_namespaces(pyseccomp: Any, rules: Any) -> None:
    # clone3 takes its flags through a pointer, which a filter cannot follow. ENOSYS makes libc fall back to clone.
    rules.add_rule(pyseccomp.ERRNO(errno.ENOSYS), "clone3")
    for flag in _CLONE_NEW:
        rules.add_rule(pyseccomp.ERRNO(errno.EPERM), "clone", pyseccomp.Arg(0, pyseccomp.MASKED_EQ, flag, flag))


def _exported(rules: Any) -> bytes:
    with tempfile.TemporaryFile() as file:
        rules.export_bpf(file)
        file.seek(0)
        return file.read()
