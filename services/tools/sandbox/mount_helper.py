"""The mount helper: a process that mounts a workspace into a warm sandbox, which started before its task was known.

The mount helper is a process of its own because it enters the sandboxes' mount namespaces, which the kernel forbids to
a process with threads. It runs with -I -S and an empty environment. It serves one request at a time on the socket that
is its stdin, and exits when the other end of that socket is closed. A request is the path of a workspace with the
descriptor of a mount namespace. The answer is OK, or one sentence with the error.

    mount_helper.py [--own-namespaces]

With --own-namespaces, for a service that runs as an ordinary user, the mount helper first creates a user namespace and
a mount namespace in which it has the right to mount. The sandboxes must start inside these two namespaces: then the
mount helper has rights over the sandboxes' namespaces, and over no others.
"""

from __future__ import annotations

import ctypes
import os
import socket
import sys

OK = b"ok"
TARGET = b"/work"
_REQUEST_BYTES = 8192
# All architectures use the same numbers for system calls from 424 on.
_OPEN_TREE, _MOVE_MOUNT, _MOUNT_SETATTR = 428, 429, 442
_CLONE_NEWNS, _CLONE_NEWUSER = 0x00020000, 0x10000000
_MS_REC, _MS_SLAVE, _MS_PRIVATE = 0x4000, 0x80000, 0x40000
_AT_FDCWD, _AT_EMPTY_PATH, _AT_RECURSIVE, _AT_SYMLINK_NOFOLLOW = -100, 0x1000, 0x8000, 0x100
_OPEN_TREE_CLONE, _OPEN_TREE_CLOEXEC = 1, 0o2000000
_MOVE_MOUNT_F_EMPTY_PATH = 4
_MOUNT_ATTR_NOSUID, _MOUNT_ATTR_NODEV = 2, 4

_libc = ctypes.CDLL(None, use_errno=True)


def call(name: str, *arguments: object) -> int:
    """Calls a function of libc. Raises OSError."""
    return _checked(name, getattr(_libc, name)(*arguments))


def system_call(name: str, number: int, *arguments: object) -> int:
    """Makes a system call for which older versions of libc have no function. Raises OSError."""
    return _checked(name, _libc.syscall(ctypes.c_long(number), *arguments))


def _checked(name: str, result: int) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{name}: {os.strerror(code)}")
    return result


class Home:
    """The original mount namespace of this process, and the root directory in that namespace."""

    def __init__(self) -> None:
        self._namespace = os.open("/proc/self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
        self._root = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)

    def restore(self) -> None:
        """Returns to the original namespace. Exits on failure: no later request may act in a sandbox's namespace."""
        try:
            call("setns", self._namespace, _CLONE_NEWNS)
            os.fchdir(self._root)
            os.chroot(".")
        except OSError:
            os._exit(1)


def attach(path: bytes, namespace: int, home: Home) -> None:
    """Mounts the directory at /work of the namespace, as bubblewrap's --bind does. Raises OSError."""
    tree = _detached_copy(path)
    try:
        call("setns", namespace, _CLONE_NEWNS)
        try:
            flags = ctypes.c_uint(_MOVE_MOUNT_F_EMPTY_PATH)
            system_call("move_mount", _MOVE_MOUNT, tree, b"", _AT_FDCWD, TARGET, flags)
        finally:
            home.restore()
    finally:
        os.close(tree)


def _detached_copy(path: bytes) -> int:
    """Returns a detached mount of the directory: no setuid programs, no devices, no propagation to the host."""
    flags = _OPEN_TREE_CLONE | _OPEN_TREE_CLOEXEC | _AT_RECURSIVE | _AT_SYMLINK_NOFOLLOW
    tree = system_call("open_tree", _OPEN_TREE, _AT_FDCWD, path, ctypes.c_uint(flags))
    attributes = (ctypes.c_uint64 * 4)(_MOUNT_ATTR_NOSUID | _MOUNT_ATTR_NODEV, 0, _MS_PRIVATE, 0)
    flags, size = _AT_EMPTY_PATH | _AT_RECURSIVE, ctypes.c_size_t(ctypes.sizeof(attributes))
    try:
        system_call("mount_setattr", _MOUNT_SETATTR, tree, b"", ctypes.c_uint(flags), attributes, size)
    except OSError:
        os.close(tree)
        raise
    return tree


def make_own_namespaces() -> None:
    """Enters a new user namespace, which maps only this user, and a new mount namespace.

    The mount namespace is a slave of the host's, so it still receives the host's new mounts. Raises OSError.
    """
    uid, gid = os.geteuid(), os.getegid()
    call("unshare", _CLONE_NEWUSER | _CLONE_NEWNS)
    for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
        _write(f"/proc/self/{name}", text)
    call("mount", b"none", b"/", None, ctypes.c_ulong(_MS_REC | _MS_SLAVE), None)


def _write(path: str, text: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


def serve(channel: socket.socket) -> None:
    """Answers requests until the other end of the channel is closed."""
    home = Home()
    while True:
        path, descriptors, _, _ = socket.recv_fds(channel, _REQUEST_BYTES, 1)
        if not path:
            return
        try:
            attach(path, descriptors[0], home)
            answer = OK
        except OSError as error:
            answer = str(error).encode(errors="replace")
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        channel.send(answer)


def main() -> None:
    """Sends OK once requests may come, or the error that prevents it."""
    with socket.socket(fileno=0) as channel:
        try:
            if "--own-namespaces" in sys.argv[1:]:
                make_own_namespaces()
        except OSError as error:
            channel.send(str(error).encode(errors="replace"))
            return
        channel.send(OK)
        serve(channel)


if __name__ == "__main__":
    main()
