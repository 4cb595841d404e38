"""Who gets which uid, whatever others hold: each descriptor here is a replica."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

from services.tools.sandbox import uid_locks
from services.tools.sandbox.uid_locks import UidLease, UidLocks
from tests.support.patience import PATIENCE_SECONDS

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or os.geteuid() != 0, reason="uids are given away by root on Linux"
)
UID = 70_000


@pytest.fixture
def workspace(tmp_path: Path) -> Callable[[str], Path]:
    def make(name: str) -> Path:
        path = tmp_path / "default" / name
        path.mkdir(parents=True, exist_ok=True)
        return path

    return make


@pytest.fixture
def replica(tmp_path: Path) -> UidLocks:
    return UidLocks(tmp_path / "locks")


def taken(lease: UidLease | None) -> UidLease:
    assert lease is not None
    return lease


def test_joining_run_has_the_same_uid(replica: UidLocks, workspace: Callable[[str], Path]) -> None:
    first = taken(replica.acquire(workspace("a"), UID))
    second = taken(replica.acquire(workspace("a"), UID + 1))
    assert (first.uid, second.uid, workspace("a").stat().st_uid) == (UID, UID, UID)
    first.close()
    third = taken(replica.acquire(workspace("a"), UID + 2))
    assert third.uid == UID
    second.close()
    third.close()
    assert taken(replica.acquire(workspace("a"), UID + 1)).uid == UID + 1
    assert workspace("a").stat().st_uid == UID + 1


def test_a_uid_in_use_is_not_given_to_another_workspace(replica: UidLocks, workspace: Callable[[str], Path]) -> None:
    first = taken(replica.acquire(workspace("a"), UID))
    assert replica.acquire(workspace("b"), UID) is None
    assert replica.acquire(None, UID) is None
    joined = taken(replica.acquire(workspace("a"), UID + 1))
    first.close()
    assert replica.acquire(workspace("b"), UID) is None  # its owner has gone, who joined it has not
    joined.close()
    alone = taken(replica.acquire(None, UID))
    assert replica.acquire(workspace("b"), UID) is None
    alone.close()
    assert taken(replica.acquire(workspace("b"), UID)).uid == UID


def test_uid_of_the_system_is_never_used(
    replica: UidLocks, workspace: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uid_locks, "_DECIDES_WITHIN_SECONDS", 0.0)
    taken(replica.acquire(workspace("a"), UID))
    os.chown(workspace("a"), 0, 0)
    with pytest.raises(OSError, match="decid"):
        replica.acquire(workspace("a"), UID + 1)


def test_racing_replicas_agree(replica: UidLocks, workspace: Callable[[str], Path]) -> None:
    """Each with a uid of its own, all at once, again and again."""
    racers = range(6)
    for _ in range(20):
        with ThreadPoolExecutor(len(racers)) as threads:
            start = Barrier(len(racers))

            def race(number: int, start: Barrier = start) -> UidLease | None:
                start.wait(PATIENCE_SECONDS)
                value: UidLease | None = replica.acquire(workspace("a"), UID + number)
                return value

            leases = [taken(lease) for lease in threads.map(race, racers)]
        assert len({lease.uid for lease in leases}) == 1
        for lease in leases:
            lease.close()
    for number in racers:
        taken(replica.acquire(None, UID + number)).close()
