"""The system calls that a program in the sandbox may not make.

The second wall: namespaces hide the host, this keeps a program away from the parts of the kernel where ways around
namespaces have been found. A deny-list, because agents run arbitrary interpreters and wheels; every refusal is an
error code and not a kill, so that programs which merely probe for a feature go on.
"""

from __future__ import annotations

import errno
import tempfile
from typing import Any

from services.tools.sandbox.errors import SandboxUnavailable

DENIED = (
    # Other processes' memory and descriptors.
    *("ptrace", "process_vm_readv", "process_vm_writev", "process_madvise", "pidfd_getfd", "kcmp"),
    # Mounts and roots, in the old and the new interface.
    *("mount", "umount", "umount2", "pivot_root", "chroot", "fsopen", "fsconfig", "fsmount", "fspick"),
    *("move_mount", "open_tree", "mount_setattr", "open_by_handle_at", "name_to_handle_at"),
    # Namespaces.
    *("unshare", "setns"),
    # Keys are not namespaced.
    *("keyctl", "add_key", "request_key"),
    # Large and often broken parts of the kernel that agents' programs do not need.
    *("bpf", "perf_event_open", "userfaultfd", "io_uring_setup", "io_uring_enter", "io_uring_register"),
    *("vmsplice", "memfd_secret", "personality", "lookup_dcookie", "modify_ldt", "uselib"),
    *("fanotify_init", "fanotify_mark", "mbind", "move_pages", "migrate_pages", "set_mempolicy"),
    # The machine itself.
    *("kexec_load", "kexec_file_load", "init_module", "finit_module", "delete_module", "reboot"),
    *("swapon", "swapoff", "acct", "syslog", "quotactl", "quotactl_fd", "iopl", "ioperm", "vhangup"),
    *("clock_settime", "clock_adjtime", "settimeofday", "adjtimex", "stime", "sethostname", "setdomainname"),
)
_CLONE_NEW = (0x00020000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000)
_TIOCSTI, _TIOCLINUX = 0x5412, 0x541C
_PR_SET_PDEATHSIG = 1
_AF_UNIX = 1


def compile_filter() -> bytes:
    """The filter as BPF, for this machine's architecture. Raises SandboxUnavailable when libseccomp is missing."""
    try:
        import pyseccomp
    except (ImportError, OSError, RuntimeError) as error:
        raise SandboxUnavailable(
            f"the system-call filter cannot be built: pyseccomp needs libseccomp.so.2 (package libseccomp2): {error}"
        ) from error
    rules = pyseccomp.SyscallFilter(pyseccomp.ALLOW)
    for name in DENIED:
        _deny(pyseccomp, rules, name)
    _deny_new_namespaces(pyseccomp, rules)
    for request in (_TIOCSTI, _TIOCLINUX):  # would type into the terminal of whoever started the service
        rules.add_rule(
            pyseccomp.ERRNO(errno.EPERM), "ioctl", pyseccomp.Arg(1, pyseccomp.MASKED_EQ, 0xFFFFFFFF, request)
        )
    # The program's death signal, for when the service dies, was set before it started. It must stay set.
    rules.add_rule(pyseccomp.ERRNO(errno.EPERM), "prctl", pyseccomp.Arg(0, pyseccomp.EQ, _PR_SET_PDEATHSIG))
    # No network: nothing but local sockets. Some families (vsock) reach the host past the network namespace.
    rules.add_rule(pyseccomp.ERRNO(errno.EAFNOSUPPORT), "socket", pyseccomp.Arg(0, pyseccomp.NE, _AF_UNIX))
    return _exported(rules)


def _deny(pyseccomp: Any, rules: Any, name: str) -> None:
    """Refuse one call; a name that this architecture or libseccomp does not know cannot be called by it either."""
    try:
        pyseccomp.resolve_syscall(pyseccomp.Arch.NATIVE, name)
    except (ValueError, OSError):
        return
    rules.add_rule(pyseccomp.ERRNO(errno.EPERM), name)


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
