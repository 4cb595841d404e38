"""Programs that attack the sandbox, by family, each with what must become of it.

They print ESCAPED when they get through. `refused(action)` prints the name of the error instead; `call(name, …)` makes
a system call by its name; `nameless()` opens a file of 1 MiB that has no name. BAIT is what exists on the host while
they run: the pid of the service, and a file, a TCP port and an abstract socket of its.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from services.tools.sandbox import SandboxLimits, SandboxStatus
from services.tools.sandbox.seccomp import DENIED, system_call_number

MIB = 1 << 20
LIMITS = SandboxLimits(
    wall_seconds=120, cpu_seconds=60, memory_bytes=96 * MIB, tmp_bytes=8 * MIB, file_bytes=4 * MIB, open_files=64
)
SHORT = dataclasses.replace(LIMITS, wall_seconds=0.7)
HIDING = dataclasses.replace(LIMITS, workspace_bytes=16 * MIB, file_bytes=MIB)
OK, NONZERO, TIMEOUT = SandboxStatus.OK, SandboxStatus.NONZERO, SandboxStatus.TIMEOUT
MEMORY, PROCESSES = SandboxStatus.OUT_OF_MEMORY, SandboxStatus.TOO_MANY_PROCESSES
OUTPUT, WORKSPACE = SandboxStatus.OUTPUT_LIMIT, SandboxStatus.WORKSPACE_LIMIT

_PRELUDE = """
import ctypes, errno, os, signal, socket, subprocess, sys
NUMBERS, BAIT = {numbers}, {bait}
libc = ctypes.CDLL(None, use_errno=True)
def refused(action):
    try: action()
    except OSError as error: print(errno.errorcode.get(error.errno, error.errno))
    else: print("ESCAPED")
def call(name, *arguments):
    words = [ctypes.c_long(word) if isinstance(word, int) else word for word in (NUMBERS[name], *arguments)]
    if libc.syscall(*words) == -1: raise OSError(ctypes.get_errno(), "")
def nameless():
    fd = os.open('.', os.O_TMPFILE | os.O_RDWR); os.write(fd, bytes(1 << 20)); return fd
"""
_ALSO_CALLED = ("clone", "clone3", "prctl", "ioctl", "socket")


@dataclasses.dataclass(frozen=True)
class Abuse:
    """`without_cgroups`: its end where no cgroup can be made, when that is another one; a TIMEOUT then comes soon."""

    code: str
    status: SandboxStatus = OK
    prints: str | None = None
    limits: SandboxLimits = LIMITS
    without_cgroups: SandboxStatus | None = None

    def expected(self, *, bounded: bool) -> tuple[SandboxStatus, SandboxLimits]:
        """Its end and its limits, where cgroups bound a run as a whole and where they do not."""
        if bounded or self.without_cgroups is None:
            return self.status, self.limits
        seconds = SHORT.wall_seconds if self.without_cgroups is TIMEOUT else self.limits.wall_seconds
        return self.without_cgroups, dataclasses.replace(self.limits, wall_seconds=seconds)

    def program(self, bait: Mapping[str, object]) -> str:
        names = (*DENIED, *_ALSO_CALLED)
        numbers = {name: number for name in names if (number := system_call_number(name)) is not None}
        return _PRELUDE.format(numbers=numbers, bait=dict(bait)) + self.code


FILLING = {
    "memory without end": Abuse("x = []\nwhile True: x.append(bytearray(8 << 20))", MEMORY),
    "one huge file in /tmp": Abuse("refused(lambda: open('/tmp/a', 'wb').write(bytes(5 << 20)))", prints="EFBIG\n"),
    "many files in /tmp": Abuse(
        "refused(lambda: [open(f'/tmp/{n}', 'wb').write(bytes(1 << 20)) for n in range(99)])", prints="ENOSPC\n"
    ),
    "filling /dev/shm": Abuse("refused(lambda: open('/dev/shm/a', 'wb').write(bytes(2 << 20)))", prints="ENOSPC\n"),
    "inodes without end": Abuse(
        "n = 0\nwhile True: open(f'/tmp/{n}', 'w').close(); n += 1",
        MEMORY,
        limits=dataclasses.replace(LIMITS, memory_bytes=32 * MIB, cpu_seconds=120),
    ),
    "anonymous memory files": Abuse(
        "fds = []\nfor n in range(40): fds.append(os.memfd_create('m')); os.write(fds[-1], bytes(4 << 20))",
        MEMORY,
        without_cgroups=OK,
    ),
    "a zip bomb": Abuse(
        "import zipfile\n"
        "with zipfile.ZipFile('b.zip', 'w', zipfile.ZIP_DEFLATED) as z: z.writestr('zeros', bytes(24 << 20))\n"
        "print(os.path.getsize('b.zip') < 100_000)\n"
        "with zipfile.ZipFile('b.zip') as z: x = [z.read('zeros') for _ in range(9)]",
        MEMORY,
    ),
    "the workspace": Abuse(
        "n = 0\nwhile True: open(f'{n}', 'wb').write(bytes(1 << 20)); n += 1",
        WORKSPACE,
        limits=dataclasses.replace(LIMITS, workspace_bytes=16 * MIB),
    ),
    "a closed workspace": Abuse(
        "os.mkdir('d'); os.chmod('.', 0o300); os.chmod('d', 0o300)\n"
        "n = 0\nwhile True: open(f'd/{n}', 'wb').write(bytes(1 << 20)); n += 1",
        WORKSPACE,
        limits=dataclasses.replace(LIMITS, workspace_bytes=16 * MIB),
    ),
    "unlinked files nested in sockets": Abuse(
        "inner, outer = socket.socketpair(), socket.socketpair()\n"
        "for _ in range(24): fd = nameless(); socket.send_fds(inner[0], [b'x'], [fd]); os.close(fd)\n"
        "socket.send_fds(outer[0], [b'x'], [end.fileno() for end in inner])\n"
        "for end in inner: end.close()\n"
        "signal.pause()",
        WORKSPACE,
        limits=HIDING,
    ),
    "unlinked files of an undumpable process": Abuse(
        "call('prctl', 4, 0)\nkept = [nameless() for _ in range(24)]\nsignal.pause()", WORKSPACE, limits=HIDING
    ),
    "unlinked files of an unreadable program": Abuse(
        "import shutil\nfor _ in range(24): os.set_inheritable(nameless(), True)\n"
        "shutil.copyfile('/bin/sleep', 'closed'); os.chmod('closed', 0o111); os.execv('closed', ['closed', '1000'])",
        WORKSPACE,
        limits=HIDING,
    ),
    "descriptors without end": Abuse(
        "refused(lambda: [open('/dev/null') for _ in range(10_000)] and None)\n"
        "refused(lambda: [os.dup(0) for _ in range(10_000)])",
        prints="EMFILE\nEMFILE\n",
    ),
    "allocated space without writes": Abuse(
        "import fcntl, struct\n"
        "fd = os.open('big', os.O_CREAT | os.O_RDWR)\n"
        "def reserve(mode):\n"
        "    size = ctypes.c_long(1 << 30)\n"
        "    if libc.fallocate(fd, mode, ctypes.c_long(0), size): raise OSError(ctypes.get_errno(), '')\n"
        "for mode in (0, 1, 0x11): refused(lambda: reserve(mode))\n"
        "asked = struct.pack('hhqqiI4i', 0, 0, 0, 1 << 30, *[0] * 6)\n"
        "for r in (0x40305828, 0x4030582A, 0x40305839): refused(lambda: fcntl.ioctl(fd, r, asked))\n"
        "os.posix_fallocate(fd, 0, 1 << 20)\n"
        "print(os.fstat(fd).st_size, os.fstat(fd).st_blocks * 512 < 3 << 20)\n"
        "refused(lambda: os.posix_fallocate(fd, 0, 5 << 20))",
        prints="ENOTSUP\n" * 6 + "1048576 True\nEFBIG\n",
    ),
    "shared memory of System V": Abuse(
        "def share():\n"
        "    if libc.shmget(0, ctypes.c_size_t(8 << 20), 0o1600) < 0: raise OSError(ctypes.get_errno(), '')\n"
        "refused(share)\n"
        "import multiprocessing as m\n"  # which has semaphores and memory of another kind
        "q = m.Queue(); p = m.Process(target=lambda: q.put(m.Value('i', 7).value)); p.start()\n"
        "print(q.get()); p.join()",
        prints="EPERM\n7\n",
    ),
    "huge arguments": Abuse(
        "refused(lambda: os.execv('/bin/true', ['x' * (1 << 22)]))\n"
        "refused(lambda: os.execv('/bin/true', ['x' * 100_000] * 100))",
        prints="E2BIG\nE2BIG\n",
    ),
}

GOING_ON = {
    "sleeping": Abuse("signal.pause()", TIMEOUT, limits=SHORT),
    "spinning": Abuse("while True: pass", TIMEOUT, limits=dataclasses.replace(LIMITS, cpu_seconds=0.5)),
    "spinning in many processes": Abuse("for _ in range(3): os.fork()\nwhile True: pass", TIMEOUT, limits=SHORT),
    "ignoring signals": Abuse(
        "for s in signal.valid_signals() - {9, 19}: signal.signal(s, signal.SIG_IGN)\nwhile True: signal.pause()",
        TIMEOUT,
        limits=SHORT,
    ),
    "reading a pipe without a writer": Abuse("os.mkfifo('f'); open('f').read()", TIMEOUT, limits=SHORT),
    "stopping itself": Abuse("os.kill(os.getpid(), signal.SIGSTOP); print('goes on')", prints="goes on\n"),
    "stopping its children": Abuse(
        "p = os.fork() or signal.pause()\nos.kill(p, signal.SIGSTOP); os.waitpid(p, 0)", TIMEOUT, limits=SHORT
    ),
    "a child that stops itself": Abuse(
        "p = os.fork() or os.kill(os.getpid(), signal.SIGSTOP)\nos.waitpid(p, 0)", TIMEOUT, limits=SHORT
    ),
    "a fork bomb": Abuse(
        "while True:\n    try: os.fork()\n    except OSError: pass",
        PROCESSES,
        without_cgroups=TIMEOUT,
    ),
    "children by vfork": Abuse("while True: subprocess.Popen(['/bin/sleep', '9'])", PROCESSES),
    "a flood of output": Abuse("while True: os.write(2, bytes(1 << 16))", OUTPUT),
    "output for terminals": Abuse(
        r"os.write(1, b'\0\x1b]0;title\x07\x1b[2J\xff\r\n')", prints="\0\x1b]0;title\x07\x1b[2J�\r\n"
    ),
}

OUTLIVING = {
    "a daemon that keeps stdout": Abuse("if os.fork() == 0: os.setsid(); os.fork() or signal.pause()", OK, ""),
    "a daemon that closed everything": Abuse(
        "if os.fork() == 0:\n    os.setsid(); os.closerange(0, 99)\n    if os.fork() == 0: signal.pause()", OK, ""
    ),
    "giving up its death signal": Abuse(
        "refused(lambda: call('prctl', 1, 0)); refused(lambda: call('prctl', 1 << 32 | 1, 0))", prints="EPERM\n" * 2
    ),
    "killing everything": Abuse(
        "refused(lambda: os.kill(-1, 9)); refused(lambda: os.kill(2, 9)); os.kill(1, 9); print('lives')",
        prints="ESRCH\nESRCH\nlives\n",
    ),
    "killing the service": Abuse("refused(lambda: os.kill(BAIT['pid'], 9))", prints="ESRCH\n"),
    "crashing with a core": Abuse(
        "open('/work/x', 'w'); os.fork() or ctypes.string_at(0); os.wait(); print(os.listdir('/work'))\n"
        "import resource; print(resource.getrlimit(resource.RLIMIT_CORE))\n"
        "refused(lambda: resource.prlimit(0, resource.RLIMIT_CORE, (0, 1)))",
        prints="['x']\n(1, 1)\nEPERM\n",
    ),
}

GETTING_OUT = {
    "TCP": Abuse("refused(lambda: socket.create_connection(('127.0.0.1', BAIT['port']), 1))", prints="EAFNOSUPPORT\n"),
    "UDP": Abuse("refused(lambda: socket.socket(socket.AF_INET6, socket.SOCK_DGRAM))", prints="EAFNOSUPPORT\n"),
    "an abstract socket of the host": Abuse(
        "s = socket.socket(socket.AF_UNIX); refused(lambda: s.connect(chr(0) + BAIT['abstract']))",
        prints="ECONNREFUSED\n",
    ),
    "vsock and netlink": Abuse(
        "for f in (40, 16, 17, 38): refused(lambda: socket.socket(f, socket.SOCK_RAW))", prints="EAFNOSUPPORT\n" * 4
    ),
    "host files": Abuse(
        "places = ('/etc/passwd', '/etc/shadow', '/root', '/home', '/var', '/sys', BAIT['file'])\n"
        "print([p for p in places if os.path.exists(p)])",
        prints="[]\n",
    ),
    "a link to a host file": Abuse("os.symlink('/etc/shadow', 'l'); refused(lambda: open('l'))", prints="ENOENT\n"),
    "a hard link into /usr": Abuse("refused(lambda: os.link('/usr/bin/env', 'l'))", prints="EXDEV\n"),
    "writing to the system": Abuse(
        "for p in ('/x', '/usr/x', '/dev/x', '/run/x', '/run/program.py'): refused(lambda: open(p, 'w'))",
        prints="EROFS\n" * 5,
    ),
    "writing kernel settings": Abuse(
        "names = ('kernel/core_pattern', 'vm/drop_caches', 'kernel/modprobe')\n"
        "def write(n): os.close(os.open('/proc/sys/' + n, os.O_WRONLY))\n"
        "def is_kept(n):\n"
        "    try: write(n)\n"
        "    except OSError as e: return e.errno in (errno.EACCES, errno.EROFS, errno.ENOENT)\n"
        "print([n for n in names if not is_kept(n)])",
        prints="[]\n",
    ),
    "writing into /proc": Abuse(
        "for n in ('oom_score_adj', 'mem', 'comm'): refused(lambda: open('/proc/self/' + n, 'r+b', 0))\n"
        "pipe = os.pipe(); os.write(os.open(f'/proc/self/fd/{pipe[1]}', os.O_WRONLY), b'open')\n"
        "print(os.read(pipe[0], 4))",
        prints="EROFS\n" * 3 + "b'open'\n",
    ),
    "kernel memory and sysrq": Abuse(
        "for p in ('/dev/mem', '/proc/kcore', '/proc/sysrq-trigger'):\n"
        "    for mode in ('rb', 'r+b'):\n"
        "        try: print('ESCAPED', open(p, mode, 0).read(1) if mode == 'rb' else open(p, mode, 0))\n"
        "        except OSError: pass",
        prints="",
    ),
    "memory of other processes": Abuse(
        "pids = sorted(p for p in os.listdir('/proc') if p.isdigit()); print(pids)\n"
        "refused(lambda: open(f\"/proc/{BAIT['pid']}/mem\", 'rb'))",
        prints="['1']\nENOENT\n",
    ),
    "secrets of process 1": Abuse(
        "seen = open('/proc/1/environ', 'rb').read() + open('/proc/1/cmdline', 'rb').read()\n"
        "print(b'SECRET' in seen, b'postgres' in seen, 'SECRET_DSN' in os.environ)",
        prints="False False False\n",
    ),
    "descriptors of the service": Abuse("print(sorted(os.listdir('/proc/self/fd')))", prints="['0', '1', '2', '3']\n"),
}

PRIVILEGES = {
    "becoming root": Abuse(
        "refused(lambda: os.setuid(0)); refused(lambda: os.setgid(0))\n"
        "print(subprocess.run(['/usr/bin/su', '-c', 'id'], capture_output=True).stdout)",
        prints="EINVAL\nEINVAL\nb''\n",
    ),
    "every refused call": Abuse(
        "wrong = [name for name in NUMBERS if name not in ('clone', 'clone3', 'prctl', 'ioctl', 'socket')\n"
        "         and not (libc.syscall(ctypes.c_long(NUMBERS[name]), 0, 0, 0, 0, 0, 0) == -1\n"
        "                  and ctypes.get_errno() == errno.EPERM)]\nprint(len(NUMBERS) > 55, wrong)",
        prints="True []\n",
    ),
    "a user namespace": Abuse("refused(lambda: call('unshare', 0x10000000))", prints="EPERM\n"),
    "a user namespace by clone": Abuse("refused(lambda: call('clone', 0x10000011, 0, 0, 0, 0))", prints="EPERM\n"),
    "clone3": Abuse("refused(lambda: call('clone3', 0, 0))", prints="ENOSYS\n"),
    "io_uring": Abuse("refused(lambda: call('io_uring_setup', 8, 0))", prints="EPERM\n"),
    "tracing": Abuse(
        "refused(lambda: call('ptrace', 16, 1, 0, 0)); refused(lambda: call('process_vm_readv', 1, 0, 0, 0, 0, 0))",
        prints="EPERM\n" * 2,
    ),
    "mounting": Abuse("refused(lambda: call('mount', b'none', b'/tmp', b'tmpfs', 0, None))", prints="EPERM\n"),
    "typing into the terminal": Abuse(
        "import fcntl\nfor r in (0x5412, 0x541C, 0x5423): refused(lambda: fcntl.ioctl(0, r, b'x'))\n"
        "refused(lambda: call('ioctl', 0, 1 << 32 | 0x5412, b'x'))",
        prints="EPERM\n" * 4,
    ),
    "devices of its own": Abuse(
        "refused(lambda: os.mknod('/tmp/d', 0o600 | 0x2000, os.makedev(1, 1)))", prints="EPERM\n"
    ),
}

FAMILIES: Mapping[str, Mapping[str, Abuse]] = {
    "filling memory and storage": FILLING,
    "running for ever": GOING_ON,
    "outliving itself": OUTLIVING,
    "getting out": GETTING_OUT,
    "gaining privileges": PRIVILEGES,
}
