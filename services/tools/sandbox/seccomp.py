"""The system calls that a program in the sandbox may not make.

The second wall: namespaces hide the host, this keeps a program away from the parts of the kernel where ways around
namespaces have been found. A deny-list, because agents run arbitrary interpreters and wheels; every refusal is an
error code and not a kill, so that programs which merely probe for a feature go on.
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
    # Shared memory that outlives who made it, and that no limit of a process counts: without a cgroup nothing does.
    *("shmget", "semget", "msgget"),
    # Keys are not namespaced.
    *("keyctl", "add_key", "request_key"),
    # Large and often broken parts of the kernel that agents' programs do not need.
    *("bpf", "perf_event_open", "userfaultfd", "io_uring_setup", "io_uring_enter", "io_uring_register"),
    *("vmsplice", "memfd_secret", "personality", "lookup_dcookie", "modify_ldt", "uselib"),
    *("fanotify_init", "fanotify_mark", "mbind", "move_pages", "migrate_pages", "set_mempolicy", "get_mempolicy"),
    *("set_mempolicy_home_node", "process_mrelease", "nfsservctl", "sysfs", "ustat", "_sysctl"),
    # The machine itself.
    *("kexec_load", "kexec_file_load", "init_module", "finit_module", "delete_module", "reboot"),
    *("swapon", "swapoff", "acct", "syslog", "quotactl", "quotactl_fd", "iopl", "ioperm", "vhangup"),
    *("clock_settime", "clock_adjtime", "settimeofday", "adjtimex", "stime", "sethostname", "setdomainname"),
)
# Disk space without writing: it does not meet the limit of a file's size, and gigabytes are gone before the next look
# at the workspace. The answer is that of a file system which cannot do it, upon which libc writes zeros instead.
RESERVING_CALLS = ("fallocate", "file_setattr")
# XFS's own interface (most file systems know it), and attributes of files, which may ask for large extents.
RESERVING_REQUESTS = {
    "XFS_IOC_ALLOCSP": 0x4030580A,
    "XFS_IOC_ALLOCSP64": 0x40305824,
    "FS_IOC_RESVSP": 0x40305828,
    "FS_IOC_RESVSP64": 0x4030582A,
    "FS_IOC_ZERO_RANGE": 0x40305839,
    "FS_IOC_FSSETXATTR": 0x401C5820,
}
_CLONE_NEW = (0x00020000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000)
# Would type into the terminal of whoever started the service; would load a line discipline's module into the kernel.
_TIOCSTI, _TIOCLINUX, _TIOCSETD = 0x5412, 0x541C, 0x5423
_PR_SET_PDEATHSIG = 1
_RLIMIT_CORE = 4
_AF_UNIX = 1
# The kernel looks at the lower half of arguments that are `int` in C; a filter that compares all 64 bits can be walked
# around with something in the upper half (seen to work).
_AS_INT = 0xFFFFFFFF
# Calls newer than the oldest libseccomp in use. From 424 on numbers are the same on all architectures.
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


def compile_filter() -> bytes:
    """The filter as BPF, for this machine's architecture. Raises SandboxUnavailable when libseccomp is missing."""
    try:
        import pyseccomp
    except (ImportError, OSError, RuntimeError) as error:
        raise SandboxUnavailable(
            f"the system-call filter cannot be built: pyseccomp needs libseccomp.so.2 (package libseccomp2): {error}"
        ) from error
    rules = pyseccomp.SyscallFilter(pyseccomp.ALLOW)
    # Calls by another ABI of the same machine (32 bits, x32) would come past every rule here: there are none.
    rules.set_attr(pyseccomp.Attr.ACT_BADARCH, pyseccomp.ERRNO(errno.ENOSYS))
    for name in DENIED:
        _deny(pyseccomp, rules, name)
    _deny_new_namespaces(pyseccomp, rules)
    for request in (_TIOCSTI, _TIOCLINUX, _TIOCSETD):
        _deny(pyseccomp, rules, "ioctl", _equals(pyseccomp, 1, request))
    _deny_reservations(pyseccomp, rules)
    # The program's death signal, for when the service dies, was set before it started. It must stay set.
    _deny(pyseccomp, rules, "prctl", _equals(pyseccomp, 0, _PR_SET_PDEATHSIG))
    _keep_core_limit(pyseccomp, rules)
    # No network: nothing but local sockets. Some families (vsock) reach the host past the network namespace.
    for name in ("socket", "socketpair"):
        rules.add_rule(pyseccomp.ERRNO(errno.EAFNOSUPPORT), name, pyseccomp.Arg(0, pyseccomp.NE, _AF_UNIX))
    return _exported(rules)


def system_call_number(name: str) -> int | None:
    """The number on this architecture; None when it has no such call. Needs libseccomp."""
    import pyseccomp

    known: int = pyseccomp.resolve_syscall(pyseccomp.Arch.NATIVE, name)
    return known if known >= 0 else _NUMBERS.get(name)


def _deny(pyseccomp: Any, rules: Any, name: str, *when: Any, error: int = errno.EPERM) -> None:
    """Refuse one call; one that this architecture does not have is none."""
    number = system_call_number(name)
    if number is not None:
        rules.add_rule(pyseccomp.ERRNO(error), number, *when)


def _equals(pyseccomp: Any, argument: int, value: int) -> Any:
    """That an argument which is an `int` to the kernel has this value."""
    return pyseccomp.Arg(argument, pyseccomp.MASKED_EQ, _AS_INT, value)


def _deny_reservations(pyseccomp: Any, rules: Any) -> None:
    for name in RESERVING_CALLS:
        _deny(pyseccomp, rules, name, error=errno.EOPNOTSUPP)
    for request in RESERVING_REQUESTS.values():
        _deny(pyseccomp, rules, "ioctl", _equals(pyseccomp, 1, request), error=errno.EOPNOTSUPP)


def _keep_core_limit(pyseccomp: Any, rules: Any) -> None:
    """The limit of 1 byte keeps a crash from the host's core handler, which runs as root; one of 0 would not."""
    _deny(pyseccomp, rules, "setrlimit", _equals(pyseccomp, 0, _RLIMIT_CORE))
    setting = pyseccomp.Arg(2, pyseccomp.NE, 0)  # reading it has no new value
    _deny(pyseccomp, rules, "prlimit64", _equals(pyseccomp, 1, _RLIMIT_CORE), setting)


def _deny_new_namespaces(pyseccomp: Any, rules: Any) -> None:
    # clone3 takes its flags through a pointer that a filter cannot follow; ENOSYS makes libc fall back to clone.
    rules.add_rule(pyseccomp.ERRNO(errno.ENOSYS), "clone3")
    for flag in _CLONE_NEW:
        rules.add_rule(pyseccomp.ERRNO(errno.EPERM), "clone", pyseccomp.Arg(0, pyseccomp.MASKED_EQ, flag, flag))


def _exported(rules: Any) -> bytes:
    with tempfile.TemporaryFile() as file:
        rules.export_bpf(file)
        file.seek(0)
        return file.read()
