"""Measures durable commits of 5 KB: through gRPC with fence and signed tokens, and the same statements alone."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from bench.bare_commits import BATCH_COMMITS, BareCommits
from bench.commit_loads import Commit, Run, closed_loop, random_arrivals
from bench.cpu import CpuMeter
from bench.data_path import DataPath
from bench.figures import Section, over
from bench.held_tasks import HeldTask, TaskMaker
from bench.options import ROUNDS, Options
from services.worker.ledger_client import LedgerClient
from tenure.domain.fencing import Audience
from tenure.runtime.postgres import connection as pool_connection
from tenure.runtime.process import Duties
from tenure.runtime.rpc_client import open_channel
from tenure.runtime.signing import Verifier
from tenure.v1 import checkpoint_service_pb2 as pb
from tenure.v1.checkpoint_service_pb2_grpc import CheckpointServiceStub
from tenure.wire.token import TokenChecker

WRITERS: Final = 64
ARRIVING_TASKS: Final = 128
RATES: Final = (1000, 1666, 2500)
MIN_PER_SECOND: Final = 1666
TIMEOUT_SECONDS: Final = 30.0
HOW: Final = (
    f"{WRITERS} writers, each with one commit of one 5 KB entry in flight; then random (Poisson) arrivals over "
    f"{ARRIVING_TASKS} tasks, with latencies from the moment at which each commit was due. Client, service and "
    f"Postgres share the cores. Bare: the same statements with the same values, {BATCH_COMMITS} commits in a "
    f"transaction, one connection, no service. {ROUNDS} rounds in which the variants take turns; figures are "
    "medians."
)


@dataclass(slots=True)
class _Rounds:
    """The results of each variant, one for each round."""

    runs: defaultdict[str, list[Run]] = field(default_factory=lambda: defaultdict(list))
    cpu: defaultdict[str, list[dict[str, float]]] = field(default_factory=lambda: defaultdict(list))
    batches: defaultdict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    def per_second(self, variant: str) -> list[float]:
        return [run.per_second for run in self.runs[variant]]


@dataclass(slots=True)
class _Bench:
    """The data path, its clients, and the results so far."""

    path: DataPath
    maker: TaskMaker
    frames: Commit
    unary: Commit
    seconds: float
    bare_batches: int
    rounds: _Rounds = field(default_factory=_Rounds)

    async def measure(self, variant: str, load: Callable[[], Awaitable[Run]]) -> None:
        """Runs one round of one variant and records its result."""
        meter = CpuMeter(self.path.pids(), own="client")
        since = await self._now()
        meter.start()
        run = await load()
        used = meter.used_seconds()
        self.rounds.runs[variant].append(run)
        self.rounds.batches[variant].append(await self._batch_size(since))
        self.rounds.cpu[variant].append({name: value * 1e6 / len(run.latencies) for name, value in used.items()})

    async def bare(self) -> None:
        """Runs the statements without the service, on new tasks: the service's client would miss these commits."""
        tasks = await self.maker.held(BATCH_COMMITS)
        commits = BareCommits(
            self.path.pool, TokenChecker(Verifier(self.path.layout.verifying_keys), Audience.CHECKPOINT)
        )
        self.rounds.runs["bare"].append(await commits.run(tasks, self.bare_batches))

    async def _now(self) -> Any:
        async with pool_connection(self.path.pool) as connection:
            row = await (await connection.execute("select clock_timestamp()")).fetchone()
        assert row is not None
        return row[0]

    async def _batch_size(self, since: Any) -> float:
        """Returns the mean number of commits in a batch: all entries of a batch have the record time of its locks."""
        statement = "select count(*)::float8 / count(distinct recorded_at) from entries where recorded_at >= %b"
        async with pool_connection(self.path.pool) as connection:
            row = await (await connection.execute(statement, [since])).fetchone()
        assert row is not None
        return float(row[0])


async def measure(options: Options) -> list[Section]:
    """Returns rates, latencies, processor time and batch sizes of commits."""
    async with AsyncExitStack() as opened:
        options.tell("commits: starting Postgres and the checkpoint service")
        path = await opened.enter_async_context(DataPath(options.folder / "commits", "checkpoint"))
        bench = await _open(path, options, opened)
        writers = await bench.maker.held(WRITERS)
        arriving = await bench.maker.held(ARRIVING_TASKS)
        await closed_loop(bench.frames, writers, options.choose(smoke=0.1, quick=1.0, full=1.0))
        for number in range(1, options.rounds + 1):
            options.tell(f"commits: round {number} of {options.rounds}")
            await _round(bench, writers, arriving)
        return [_section(bench.rounds)]


async def _open(path: DataPath, options: Options, opened: AsyncExitStack) -> _Bench:
    channel = await opened.enter_async_context(open_channel(path.address("checkpoint")))
    ledger = LedgerClient(channel)
    duties = await opened.enter_async_context(Duties())
    duties.start("commit stream", ledger.run)
    stub: Any = CheckpointServiceStub(channel)

    async def unary(request: pb.CommitRequest) -> pb.CommitResponse:
        response: pb.CommitResponse = await stub.Commit(request, timeout=TIMEOUT_SECONDS)
        return response

    return _Bench(
        path,
        TaskMaker(channel, path.signer),
        ledger.commit,
        unary,
        seconds=options.choose(smoke=0.05, quick=0.6, full=4.0),
        bare_batches=options.choose(smoke=2, quick=60, full=400),
    )


async def _round(bench: _Bench, writers: list[HeldTask], arriving: list[HeldTask]) -> None:
    await bench.bare()
    await bench.measure("frames", partial(closed_loop, bench.frames, writers, bench.seconds))
    await bench.measure("unary", partial(closed_loop, bench.unary, writers, bench.seconds))
    for rate in RATES:
        await bench.measure(str(rate), partial(random_arrivals, bench.frames, arriving, rate, bench.seconds))


def _section(rounds: _Rounds) -> Section:
    section = Section("Durable commits of 5 KB", HOW)
    bare = rounds.per_second("bare")
    section.add_rounds("bare Postgres", bare, "/s")
    for variant, description in (
        ("frames", f"{WRITERS} writers, frames"),
        ("unary", f"{WRITERS} writers, unary calls"),
    ):
        rates = rounds.per_second(variant)
        section.add_rounds(description, rates, "/s", bound=over(MIN_PER_SECOND) if variant == "frames" else None)
        shares = [100 * rate / base for rate, base in zip(rates, bare, strict=True)]
        section.add_rounds(f"{description}: share of bare", shares, "%", is_compared=variant == "frames")
        _add_details(section, description, variant, rounds)
    for rate in RATES:
        description = f"{rate:,} arrivals/s, frames"
        section.add_latencies(description, [value for run in rounds.runs[str(rate)] for value in run.latencies])
        _add_details(section, description, str(rate), rounds, with_latencies=False)
    return section


def _add_details(
    section: Section, description: str, variant: str, rounds: _Rounds, *, with_latencies: bool = True
) -> None:
    if with_latencies:
        section.add_latencies(description, [value for run in rounds.runs[variant] for value in run.latencies])
    section.add_rounds(f"{description}: commits in a batch", rounds.batches[variant], "")
    for name in ("checkpoint", "client", "Postgres"):
        values = [used[name] for used in rounds.cpu[variant] if name in used]
        section.add_rounds(f"{description}: CPU of {name}", values, "µs a commit")
