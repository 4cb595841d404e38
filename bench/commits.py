"""Measures durable commits of 5 KB: through gRPC with fence and signed tokens, and the same statements alone.

The statements are recorded while the code of the checkpoint service runs them in a transaction that is rolled back.
Then they run again with the same values: no rules, no gRPC and no tokens, only the round trips of the transaction.
"""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter
from typing import Any, Final, cast

from bench.data_path import DataPath, HeldTask, TaskMaker
from bench.processes import CpuMeter
from bench.report import Section, over
from bench.run import ROUNDS, Options
from services.checkpoint.commit.committing import commit_batch
from services.checkpoint.commit.prepared import PreparedCommit, prepare
from services.checkpoint.prices import PriceList
from services.worker.ledger_client import LedgerClient
from tenure.domain.fencing import Audience
from tenure.runtime.process import Duties
from tenure.runtime.rpc.client import open_channel
from tenure.runtime.security.signing import Verifier
from tenure.runtime.store.postgres import BoundedConnection, Pool, pool_connection
from tenure.v1 import checkpoint_service_pb2 as pb
from tenure.v1 import ledger_pb2
from tenure.v1.checkpoint_service_pb2_grpc import CheckpointServiceStub
from tenure.wire.token import TokenChecker

BODY_BYTES: Final = 5000
Commit = Callable[[pb.CommitRequest], Awaitable[pb.CommitResponse]]


@dataclass(slots=True)
class Run:
    """The result of one load: its duration, and the latency of each commit, in seconds."""

    seconds: float = 0.0
    latencies: list[float] = field(default_factory=list)

    @property
    def per_second(self) -> float:
        return len(self.latencies) / self.seconds


def fact() -> ledger_pb2.NewEntry:
    """Returns an entry of 5 KB that does not compress."""
    text = random.randbytes(BODY_BYTES // 2).hex()
    return ledger_pb2.NewEntry(step=1, body=ledger_pb2.EntryBody(user_message=ledger_pb2.UserMessage(text=text)))


async def closed_loop(commit: Commit, tasks: Sequence[HeldTask], seconds: float) -> Run:
    """Runs one writer for each task, with one commit in flight and no pause: batches are fuller than in production."""
    run, began = Run(), perf_counter()

    async def write(task: HeldTask) -> None:
        entries = [fact()]
        while (sent := perf_counter()) - began < seconds:
            task.acknowledged(await commit(task.commit(entries)))
            run.latencies.append(perf_counter() - sent)

    await asyncio.gather(*(write(task) for task in tasks))
    run.seconds = perf_counter() - began
    return run


async def random_arrivals(commit: Commit, tasks: Sequence[HeldTask], per_second: float, seconds: float) -> Run:
    """Runs Poisson arrivals. A latency counts from the moment at which the commit was due, also if it was sent late."""
    run, entries = Run(), [fact()]
    free: asyncio.Queue[HeldTask] = asyncio.Queue()
    for task in tasks:
        free.put_nowait(task)

    async def write(due: float) -> None:
        task = await free.get()
        task.acknowledged(await commit(task.commit(entries)))
        run.latencies.append(perf_counter() - due)
        free.put_nowait(task)

    began = due = perf_counter()
    async with asyncio.TaskGroup() as writers:
        while (due := due + random.expovariate(per_second)) - began < seconds:
            await asyncio.sleep(max(0.0, due - perf_counter()))  # also when late, so that the writers run
            writers.create_task(write(due))
    run.seconds = perf_counter() - began
    return run


BATCH_COMMITS: Final = 64
Statement = tuple[bytes, dict[str, Any]]


@dataclass(slots=True)
class _Recorder:
    """Replaces the connection of the checkpoint service's code: runs each statement and records it."""

    connection: BoundedConnection
    statements: list[Statement] = field(default_factory=list)

    async def execute(self, statement: bytes, parameters: dict[str, Any]) -> Any:
        self.statements.append((statement, parameters))
        return await self.connection.execute(statement, parameters)

    def take(self) -> list[Statement]:
        """Returns the statements since the last call."""
        statements, self.statements = self.statements, []
        return statements


@dataclass(frozen=True, slots=True)
class BareCommits:
    """Commits batches of 64 on one connection. Its tasks must be unused, and can be used only once."""

    pool: Pool
    tokens: TokenChecker

    async def run(self, tasks: Sequence[HeldTask], batches: int) -> Run:
        """Commits one entry to each task, `batches` times."""
        async with pool_connection(self.pool) as connection:
            recorded = await self._record(connection, tasks, batches)
            return await _replay(connection, recorded, len(tasks))

    async def _record(
        self, connection: BoundedConnection, tasks: Sequence[HeldTask], batches: int
    ) -> list[list[Statement]]:
        recorder = _Recorder(connection)
        connection_stub = cast("BoundedConnection", recorder)
        commits = [prepare(task.commit([fact()]), self.tokens, validated=True) for task in tasks]
        recorded = []
        async with connection.transaction(force_rollback=True):
            for _ in range(batches):
                results, _ = await commit_batch(connection_stub, commits, PriceList())
                for result in results:
                    if isinstance(result, Exception):
                        raise result
                commits = [_next(commit) for commit in commits]
                recorded.append(recorder.take())
        return recorded


def _next(commit: PreparedCommit) -> PreparedCommit:
    """Returns the following commit of the task. Each adds one entry, so number and sequence grow by one."""
    return commit._replace(commit_number=commit.commit_number + 1, known_sequence=commit.known_sequence + 1)


async def _replay(connection: BoundedConnection, recorded: Sequence[Sequence[Statement]], batch_commits: int) -> Run:
    run, began = Run(), perf_counter()
    for statements in recorded:
        sent = perf_counter()
        async with connection.transaction():
            for statement, parameters in statements:
                cursor = await connection.execute(statement, parameters)
                if cursor.description is not None:
                    await cursor.fetchall()
        run.latencies += [perf_counter() - sent] * batch_commits
    run.seconds = perf_counter() - began
    return run


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
