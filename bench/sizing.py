"""`python -m bench.sizing`: what an installation needs for a number of active tasks, by a stated model.

The costs are measured figures (docs/sizing.md says by which run). The model multiplies them by the rates of a load and
adds nothing of its own: no service is assumed to become cheaper per step as it gets busier, although batches grow then.
`python -m bench.sizing --active 5000 --step-seconds 20` prints the table for another load.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Final

BUSY_SHARE: Final = 0.6
"""How much of a core a process may use: above it, queues in the process make latencies grow."""
SLOTS_A_WORKER: Final = 250
RENEW_SECONDS: Final = 1.5
SESSION_KEYS: Final = 1
CLAIMS_A_TXN: Final = 100
"""Claims in one etcd transaction: `MAX_BATCH` of services/coordinator/lease_store/claim_keys.py."""
DAY_SECONDS: Final = 86_400
SIZES: Final = (1_000, 10_000, 30_000, 100_000)


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of one service: µs of processor time for each of these, and memory."""

    step: float = 0.0
    pickup: float = 0.0
    held_second: float = 0.0
    piece: float = 0.0
    event: float = 0.0
    live_piece: float = 0.0
    process_mib: float = 0.0
    active_kib: float = 0.0
    watcher_kib: float = 0.0


COSTS: Final[Mapping[str, Cost]] = {
    "worker": Cost(step=4_150, held_second=12, piece=105, process_mib=105, active_kib=124),
    "checkpoint": Cost(step=2_640, pickup=2_090, event=89, process_mib=59, active_kib=4.6, watcher_kib=46),
    "tools": Cost(step=1_790, process_mib=68, active_kib=4.5),
    "coordinator": Cost(step=540, pickup=2_730, process_mib=38, active_kib=9.3),
    "gateway": Cost(step=140, pickup=500, event=163, live_piece=196, process_mib=39, active_kib=0.3, watcher_kib=141),
    "Postgres": Cost(step=2_410, pickup=860, process_mib=82, active_kib=40.5),
    "etcd": Cost(step=310, pickup=580, process_mib=20, active_kib=16.5),
}
WAL_BYTES_A_STEP: Final = 6_600
LEDGER_BYTES_A_STEP: Final = 2_700
MEASURED_BODY_BYTES: Final = 2_400
"""The bodies of a step in the run that measured the two above."""
ENTRIES_A_STEP: Final = 4


@dataclass(frozen=True, slots=True)
class Load:
    """The tasks of an installation at one time.

    `held_share`: of the active tasks, those with a worker; the others wait for a person or an event. `step_seconds`:
    how long a step of a held task takes. `pickups_a_step`: how often a task gets a worker, after a submit or a wait.
    `pieces_a_second`: of a streamed answer. `watched_share`: tasks that a client follows with live text.
    `bodies_kib`: the answer, the arguments and the outcome of a step.
    """

    active: int
    held_share: float = 0.58
    step_seconds: float = 51.0
    pickups_a_step: float = 0.5
    streaming_share: float = 0.88
    pieces_a_second: float = 1.0
    watched_share: float = 0.1
    bodies_kib: float = 5.0

    def __post_init__(self) -> None:
        """Raises ValueError for a load that no installation has."""
        shares = (self.held_share, self.streaming_share, self.watched_share)
        rates = (self.pickups_a_step, self.pieces_a_second, self.bodies_kib)
        if self.active < 1 or self.step_seconds <= 0 or min(rates) < 0:
            raise ValueError("a load has at least one task, steps that take time, and no negative rate")
        if not all(0 <= share <= 1 for share in shares):
            raise ValueError("a share is between 0 and 1")

    @property
    def held(self) -> float:
        return self.active * self.held_share

    @property
    def steps(self) -> float:
        """Steps a second."""
        return self.held / self.step_seconds

    @property
    def pickups(self) -> float:
        """Grants and Opens a second."""
        return self.steps * self.pickups_a_step

    @property
    def pieces(self) -> float:
        """Pieces of streamed answers a second."""
        return self.held * self.streaming_share * self.pieces_a_second

    @property
    def watchers(self) -> float:
        return self.active * self.watched_share

    def cores(self, cost: Cost) -> float:
        """Returns the cores that a service uses for this load."""
        watched_steps = self.steps * self.watched_share
        micros = (
            self.steps * cost.step
            + self.pickups * cost.pickup
            + self.held * cost.held_second
            + self.pieces * cost.piece
            + watched_steps * ENTRIES_A_STEP * cost.event
            + self.pieces * self.watched_share * cost.live_piece
        )
        return micros / 1e6

    def memory_gib(self, cost: Cost, processes: int) -> float:
        """Returns the memory of all processes of a service."""
        kib = processes * cost.process_mib * 1024 + self.active * cost.active_kib + self.watchers * cost.watcher_kib
        return kib / 1024**2


@dataclass(frozen=True, slots=True)
class Need:
    """The need of one service: processes, the cores that they use together, and their memory."""

    service: str
    processes: int
    cores: float
    memory_gib: float


def needs(load: Load) -> list[Need]:
    """Returns the need of each service. Stores are one server each, whatever their cores."""
    all_needs = []
    for service, cost in COSTS.items():
        cores = load.cores(cost)
        processes = 1 if service in ("Postgres", "etcd") else max(1, ceil(cores / BUSY_SHARE))
        if service == "worker":
            processes = max(processes, ceil(load.held / SLOTS_A_WORKER))
        all_needs.append(Need(service, processes, cores, load.memory_gib(cost, processes)))
    return all_needs


@dataclass(frozen=True, slots=True)
class Stores:
    """The writes of the load to the stores."""

    wal_mb: float
    ledger_gb_a_day: float
    etcd_keys: int
    renewals: float
    grant_txns: float


def stores(load: Load) -> Stores:
    """Returns the writes of this load. `renewals` and `grant_txns`: of etcd, a second."""
    extra = load.bodies_kib * 1024 - MEASURED_BODY_BYTES
    workers = next(need.processes for need in needs(load) if need.service == "worker")
    return Stores(
        wal_mb=load.steps * (WAL_BYTES_A_STEP + extra) / 1e6,
        ledger_gb_a_day=load.steps * (LEDGER_BYTES_A_STEP + extra) * DAY_SECONDS / 1e9,
        etcd_keys=round(load.held) + workers * SESSION_KEYS + 1,
        renewals=workers / RENEW_SECONDS,
        grant_txns=load.pickups / CLAIMS_A_TXN,
    )


def table(load: Load, sizes: Sequence[int] = SIZES) -> str:
    """Returns the table of docs/sizing.md."""
    loads = [replace(load, active=size) for size in sizes]
    rows = [["active tasks", *(f"{size:,}" for size in sizes)], ["---", *("---:" for _ in sizes)]]
    rows.append(["steps a second", *(f"{one.steps:,.0f}" for one in loads)])
    rows.append(["pieces of streamed answers a second", *(f"{one.pieces:,.0f}" for one in loads)])
    for place, service in enumerate(COSTS):
        cells = [needs(one)[place] for one in loads]
        is_store = service in ("Postgres", "etcd")
        rows.append(
            [f"{service}: cores{'' if is_store else ' (processes)'}", *(_cores(one, is_store) for one in cells)]
        )
    rows.append(["memory, GiB", *(f"{sum(need.memory_gib for need in needs(one)):,.1f}" for one in loads)])
    written = [stores(one) for one in loads]
    rows.append(["Postgres: WAL, MB a second", *(f"{one.wal_mb:,.1f}" for one in written)])
    rows.append(["Postgres: growth of the ledger, GB a day", *(f"{one.ledger_gb_a_day:,.1f}" for one in written)])
    rows.append(["etcd: keys", *(f"{one.etcd_keys:,}" for one in written)])
    rows.append(["etcd: renewed leases a second", *(f"{one.renewals:,.0f}" for one in written)])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _cores(need: Need, is_store: bool) -> str:
    return f"{need.cores:,.2f}" if is_store else f"{need.cores:,.2f} ({need.processes:,})"


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(prog="python -m bench.sizing", description=main.__doc__)
    default = Load(active=1)
    parser.add_argument("--active", type=int, nargs="+", default=list(SIZES), help="active tasks, one column for each")
    for name in (one for one in Load.__slots__ if one != "active"):
        parser.add_argument(f"--{name.replace('_', '-')}", type=float, default=getattr(default, name))
    given = vars(parser.parse_args(arguments))
    sizes = given.pop("active")
    try:
        print(table(Load(active=min(sizes), **given), sizes))
    except ValueError as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
