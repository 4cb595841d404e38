"""The sandbox's self-test at every start of the service: a program that tries to escape and must fail.

A check of the parts does not reveal every mistake in their assembly: started by real root, for example, the sandbox
lets a program write kernel settings. So the service creates targets (a secret file and two listening sockets) and
serves only when the program reached none of them.
"""

from __future__ import annotations

import json
import os
import socket
import tempfile
import uuid
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from services.tools.sandbox.command import ENVIRONMENT
from services.tools.sandbox.detection import user_namespace_hint
from services.tools.sandbox.limits import SandboxEscaped, SandboxUnavailable
from services.tools.sandbox.result import SandboxResult, SandboxStatus

_KERNEL_FILES = ("kernel/core_pattern", "kernel/modprobe", "vm/drop_caches", "fs/suid_dumpable")
_SECRET = "only the host may read this"

_PROBES = """
import ctypes, errno, glob, json, os, socket, sys
targets = json.loads(TARGETS)
escapes = []

def attempt(what, action):
    try:
        if action() is not False:
            escapes.append(what)
    except (OSError, AttributeError):
        pass

def connect(family, address):
    with socket.socket(family, socket.SOCK_STREAM) as s:
        s.settimeout(1)
        s.connect(address)

def may_write(path):
    try:
        os.close(os.open(path, os.O_WRONLY))
    except OSError as error:
        return error.errno == errno.EROFS  # the kernel checks rights first, so this process has the host root's
    return True
for name in targets["kernel"]:
    path = "/proc/sys/" + name
    attempt("had the right to write " + path, lambda: may_write(path))
for path in targets["files"]:
    attempt("read the host's " + path, lambda: open(path, "rb").read(1))
attempt("connected to a TCP port of the host", lambda: connect(socket.AF_INET, ("127.0.0.1", targets["port"])))
attempt("connected to a local socket of the host", lambda: connect(socket.AF_UNIX, chr(0) + targets["abstract"]))
names = {entry.split(b"=")[0].decode() for path in glob.glob("/proc/[0-9]*/environ")
         for entry in open(path, "rb").read().split(b"\\0") if entry}
foreign = sorted(names - set(targets["environment"]))
attempt("saw environment variables of the service: " + ", ".join(foreign), lambda: bool(foreign))
libc = ctypes.CDLL(None)
attempt("was allowed to be debugged", lambda: libc.ptrace(0, 0, 0, 0) == 0)
for first in (1, 1 << 32 | 1):  # the kernel sees the lower half only
    attempt("removed its death signal", lambda: libc.prctl(ctypes.c_ulong(first), *[ctypes.c_ulong(0)] * 4) == 0)
attempt("reached a process of the host", lambda: targets["pid"] != 1 and os.kill(targets["pid"], 0))
attempt("opened a netlink socket", lambda: socket.socket(16, socket.SOCK_RAW).close())
for path in glob.glob("/proc/[0-9]*/status"):
    attempt("found a process without a filter", lambda: "Seccomp:\\t2" not in open(path).read())
attempt("made a user namespace", lambda: libc.unshare(0x10000000) == 0)
for path in ("/", "/usr", "/dev"):
    attempt("wrote into " + path, lambda: os.close(os.open(path + "/.probe", os.O_CREAT | os.O_WRONLY)))
print(json.dumps(escapes))
"""

Run = Callable[[str], Awaitable[SandboxResult]]


async def escapes(run: Run) -> list[str]:
    """Runs the probes and returns what those that escaped did. Raises SandboxUnavailable when the probes do not run."""
    with _probe_targets() as targets:
        code = _PROBES.replace("TARGETS", repr(json.dumps(targets)))
        result = await run(code)
    if result.status is not SandboxStatus.OK:
        problem = result.message or result.stderr.strip() or result.stdout.strip()
        raise SandboxUnavailable(f"no program runs in the sandbox: {result.status}: {problem}{user_namespace_hint()}")
    report = json.loads(result.stdout)
    assert isinstance(report, list)
    return [str(escape) for escape in report]


async def require_no_escape(run: Run) -> None:
    """Runs the probes. Raises SandboxEscaped, which names each probe that escaped, and SandboxUnavailable."""
    escaped = await escapes(run)
    if escaped:
        raise SandboxEscaped(escaped)


@contextmanager
def _probe_targets() -> Iterator[dict[str, object]]:
    """Creates the targets on the host for the time of the probes: a readable secret, a TCP port, an abstract socket."""
    abstract = f"tenure-probe-{uuid.uuid4().hex}"
    with (
        tempfile.NamedTemporaryFile("w", prefix="tenure-probe-") as secret,
        socket.create_server(("127.0.0.1", 0)) as tcp,
        socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as local,
    ):
        secret.write(_SECRET)
        secret.flush()
        Path(secret.name).chmod(0o644)
        local.bind("\0" + abstract)
        local.listen()
        yield {
            "kernel": _KERNEL_FILES,
            "files": [secret.name, "/etc/passwd", "/etc/shadow", "/proc/kcore", "/etc/hostname"],
            "port": tcp.getsockname()[1],
            "pid": os.getpid(),
            "abstract": abstract,
            "environment": [*ENVIRONMENT, "PWD", "OLDPWD", "LC_CTYPE"],
        }
