"""The work of a step of one task alone, counted on the real services. Counts, unlike times, do not depend on the load.

The test fails when a count grows by a tenth; lower the limit when the count shrinks. The calls are those of functions
of services/ and tenure/, because the event loop's own depend on how often it wakes: for this reason a coroutine counts
once, when it begins, and not each time it goes on. The duties that pause between their rounds run beside the steps, the
more of them the slower the machine is, so their calls do not count. BEGIN and COMMIT count, too. Objects that refer to
each other in a circle stay until a collection, which stops the event loop.
"""

from __future__ import annotations

import gc
import opcode
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from statistics import median
from types import CodeType
from typing import Any, Final

from bench.data_path import TaskMaker
from bench.null_agent import NullAgent
from edges.tools import ConfiguredTools
from services.tools.main import assemble
from services.tools.settings import ToolsSettings
from services.tools.statements import MIGRATIONS
from services.worker.ledger_client import LedgerClient
from services.worker.tools_client import ToolsClient
from tenure.runtime.observability.logs import logged_context
from tenure.runtime.process import Duties, Process, rest
from tenure.runtime.rpc.client import open_channel
from tenure.runtime.security.signing import Signer
from tenure.runtime.settings import load
from tests.support.fix_checkpoint import Checkpoint, MakeCheckpoint
from tests.support.fix_postgres import FreshDatabase

CALLS, STATEMENTS, ROUND_TRIPS, TRANSACTIONS, MESSAGES, GARBAGE = (
    "calls",
    "statements",
    "round trips",
    "transactions",
    "messages",
    "objects for the collector",
)
FENCED_EFFECT: Final = {CALLS: 1056, STATEMENTS: 11, ROUND_TRIPS: 6, TRANSACTIONS: 4, MESSAGES: 6, GARBAGE: 0}
RECORDED_STEP: Final = {CALLS: 239, STATEMENTS: 4, ROUND_TRIPS: 2, TRANSACTIONS: 1, MESSAGES: 2, GARBAGE: 0}
GROWTH: Final = 1.1
STEPS: Final = 27
ROOT: Final = Path(__file__).parents[2]
OURS: Final = (f"{ROOT}/services/", f"{ROOT}/tenure/")
COUNTED: Final = {
    "PreparedStatements.bound": STATEMENTS,
    "PreparedStatements._send": ROUND_TRIPS,
    "PipelinedTransaction.__init__": TRANSACTIONS,
    "SingleStatements.__init__": TRANSACTIONS,
}
RESUME: Final = opcode.opmap["RESUME"]
AFTER_A_WAIT: Final = 3
"""The bits of RESUME's argument that say after what the frame goes on; all are 0 where it begins."""


class StepCounter:
    """Counts what this thread does in a step, and the garbage in circles that it leaves."""

    def __init__(self) -> None:
        self._bytecode: dict[CodeType, bytes] = {}
        self._pausing: set[str | None] = set()
        self._events: Counter[tuple[str | None, str]] = Counter()

    def _on_event(self, frame: Any, event: str, argument: Any) -> None:
        if event == "call":
            self._on_call(frame, frame.f_code)
        elif event == "c_call" and argument.__name__ == "SerializeToString" and "Stream" in argument.__qualname__:
            self._count(MESSAGES)

    def _on_call(self, frame: Any, code: CodeType) -> None:
        if not code.co_filename.startswith(OURS):
            return
        if code not in self._bytecode:
            self._bytecode[code] = code.co_code  # each read makes a copy
        operation, argument = self._bytecode[code][frame.f_lasti : frame.f_lasti + 2]
        if operation != RESUME or argument & AFTER_A_WAIT:
            return
        if code is rest.__code__:
            self._pausing.add(logged_context().get("duty"))
        self._count(CALLS)
        if kind := COUNTED.get(code.co_qualname):
            self._count(kind)

    def _count(self, kind: str) -> None:
        self._events[logged_context().get("duty"), kind] += 1

    @contextmanager
    def step(self) -> Iterator[Counter[tuple[str | None, str]]]:
        """Yields the counts of the block: of each duty (None: of the requests) and each kind."""
        self._events = Counter()
        gc.collect()
        gc.disable()
        sys.setprofile(self._on_event)
        try:
            yield self._events
        finally:
            sys.setprofile(None)
            self._events[None, GARBAGE] = gc.collect()
            gc.enable()

    def totals(self, step: Counter[tuple[str | None, str]]) -> Counter[str]:
        """Returns the counts of `step` without those of duties that pause between their rounds."""
        totals: Counter[str] = Counter()
        for (duty, kind), count in step.items():
            if duty not in self._pausing:
                totals[kind] += count
        return totals


@asynccontextmanager
async def null_agent(replica: Checkpoint, dsn: str, folder: Path) -> AsyncIterator[NullAgent]:
    """Yields an agent on the replica and on a tool service in this process."""
    settings = {
        "LISTEN": "127.0.0.1:0",
        "POSTGRES_DSN": dsn,
        "VERIFYING_KEYS_FILE": str(replica.keys / "verifying.json"),
        "WORKSPACE_ROOT": str(folder / "workspaces"),
        "RECORDS_DIR": str(folder / "records"),
        "SANDBOX_WARM": "0",
    }
    prefix, process = "TENURE_TOOLS_", Process()
    loaded = load(ToolsSettings, {f"{prefix}{name}": value for name, value in settings.items()}, prefix=prefix)
    try:
        server = await process.open(await assemble(process, loaded, ConfiguredTools.read, {}))
        async with open_channel(server.address) as channel, Duties() as duties:
            ledger, tools = LedgerClient(replica.channel), ToolsClient(channel)
            duties.start("commit stream", ledger.run)
            duties.start("tool stream", tools.run)
            yield NullAgent(ledger, tools)
    finally:
        await process.close()


async def test_step_makes_no_more_calls_statements_and_messages(
    checkpoint: MakeCheckpoint, fresh_database: FreshDatabase, tmp_path: Path
) -> None:
    replica = await checkpoint()
    maker = TaskMaker(replica.channel, Signer.load(replica.keys / "signing.json"))
    async with null_agent(replica, await fresh_database(MIGRATIONS), tmp_path) as agent:
        counter = StepCounter()

        async def usual(*, fenced: bool) -> dict[str, float]:
            """Returns the counts of the median step: a few wait for a duty, or renew what all steps share."""
            [task] = await maker.held(1)
            if fenced:
                await agent.begin(task)
            steps = []
            for _ in range(STEPS):
                with counter.step() as counts:
                    await (agent.step(task) if fenced else agent.recorded_step(task, lambda: "done"))
                steps.append(counts)
            totals = [counter.totals(counts) for counts in steps]
            return {kind: median(counts[kind] for counts in totals) for kind in FENCED_EFFECT}

        await usual(fenced=True)  # the first steps prepare the statements
        steps = {"a fenced tool effect": (await usual(fenced=True), FENCED_EFFECT)}
        await usual(fenced=False)
        steps["a recorded step"] = (await usual(fenced=False), RECORDED_STEP)
    for counts, limits in steps.values():
        assert counts[CALLS] > limits[CALLS] / 2, "the counter does not see the calls"
    grown = {
        f"{kind} of {step}: {count:.1f}, limit {limits[kind]}"
        for step, (counts, limits) in steps.items()
        for kind, count in counts.items()
        if count > GROWTH * limits[kind]
    }
    assert not grown
