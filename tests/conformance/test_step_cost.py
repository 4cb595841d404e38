"""The work of a step of one task alone, counted on the real services. Counts, unlike times, do not depend on the load.

The test fails when a count grows by a tenth; lower the limit when the count shrinks. The calls are those of functions
of services/ and tenure/, because the event loop's own depend on how often it wakes. BEGIN and COMMIT count, too.
Objects that refer to each other in a circle stay until a collection, which stops the event loop.
"""

from __future__ import annotations

import gc
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Final

from bench.data_path import TaskMaker
from bench.null_agent import NullAgent
from edges.tools import ConfiguredTools
from services.tools.main import assemble
from services.tools.settings import ToolsSettings
from services.tools.statements import MIGRATIONS
from services.worker.ledger_client import LedgerClient
from services.worker.tools_client import ToolsClient
from tenure.runtime.process import Duties, Process
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
FENCED_EFFECT: Final = {CALLS: 1180, STATEMENTS: 11, ROUND_TRIPS: 6, TRANSACTIONS: 4, MESSAGES: 6, GARBAGE: 0}
RECORDED_STEP: Final = {CALLS: 328, STATEMENTS: 4, ROUND_TRIPS: 2, TRANSACTIONS: 1, MESSAGES: 2, GARBAGE: 0}
GROWTH: Final = 1.1
STEPS: Final = 9
ROUNDS: Final = 3
ROOT: Final = Path(__file__).parents[2]
OURS: Final = (f"{ROOT}/services/", f"{ROOT}/tenure/")
COUNTED: Final = {
    # No coroutines: a profiler sees each of their resumptions as a call.
    "PreparedStatements.bound": STATEMENTS,
    "PreparedStatements._send": ROUND_TRIPS,
    "PipelinedTransaction.__init__": TRANSACTIONS,
    "SingleStatements.__init__": TRANSACTIONS,
}


@contextmanager
def counted() -> Iterator[Counter[str]]:
    """Counts what this thread does inside it, and the garbage in circles that it leaves."""
    counts: Counter[str] = Counter()

    def on_event(frame: Any, event: str, argument: Any) -> None:
        if event == "call":
            code = frame.f_code
            counts[CALLS] += code.co_filename.startswith(OURS)
            if kind := COUNTED.get(code.co_qualname):
                counts[kind] += 1
        elif event == "c_call" and argument.__name__ == "SerializeToString":
            counts[MESSAGES] += "Stream" in argument.__qualname__

    gc.collect()
    gc.disable()
    sys.setprofile(on_event)
    try:
        yield counts
    finally:
        sys.setprofile(None)
        counts[GARBAGE] = gc.collect()
        gc.enable()


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

        async def least(*, fenced: bool) -> dict[str, float]:
            """Returns the counts a step of the quietest task: duties of the services run beside the steps."""
            rounds: list[Counter[str]] = []
            for task in await maker.held(ROUNDS):
                if fenced:
                    await agent.begin(task)
                with counted() as counts:
                    for _ in range(STEPS):
                        await (agent.step(task) if fenced else agent.recorded_step(task, lambda: "done"))
                rounds.append(counts)
            return {kind: min(counts[kind] for counts in rounds) / STEPS for kind in FENCED_EFFECT}

        await least(fenced=True)  # the first steps prepare the statements
        steps = {"a fenced tool effect": (await least(fenced=True), FENCED_EFFECT)}
        await least(fenced=False)
        steps["a recorded step"] = (await least(fenced=False), RECORDED_STEP)
    grown = {
        f"{kind} of {step}: {count:.1f}, limit {limits[kind]}"
        for step, (counts, limits) in steps.items()
        for kind, count in counts.items()
        if count > GROWTH * limits[kind]
    }
    assert not grown
