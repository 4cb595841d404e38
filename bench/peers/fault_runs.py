"""The faults of all engines: zombies with short timeouts, kills with the documented defaults."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from bench.peers.engine import PeerEngine
from bench.peers.faults import Outcome, run_fault
from bench.peers.program import EngineFailedError
from bench.peers.results import Result
from bench.peers.tenure_engine import TenureEngine
from bench.run import Options, Size


async def run_faults(
    engines: Sequence[TenureEngine | PeerEngine], results: Mapping[str, Result], options: Options
) -> None:
    """Adds the outcomes to the results. An engine that failed before has no faults."""
    count = options.choose(smoke=1, quick=1, full=3)
    for engine in engines:
        result = results[engine.name]
        if result.error:
            continue
        try:
            options.tell(f"{engine.title}: a worker freezes at the tool")
            result.repeated = [one.repeated for one in await _outcomes(engine, "freeze", count, options)]
            options.tell(f"{engine.title}: a worker is killed at the tool")
            result.takeovers = [one.takeover_seconds for one in await _outcomes(engine, "kill", count, options)]
        except EngineFailedError as error:
            result.error = str(error)
            options.tell(f"{engine.title} failed: {error}")


async def _outcomes(engine: TenureEngine | PeerEngine, fault: str, count: int, options: Options) -> list[Outcome]:
    """Returns the outcomes of so many runs: one after the other, or together if each mostly waits for minutes."""
    folders = [options.folder / f"{engine.name}_{fault}_{number}" for number in range(count)]
    for folder in folders:
        folder.mkdir()
    if isinstance(engine, TenureEngine):
        return [await engine.run_fault(folder, fault) for folder in folders]
    # The kill has the defaults, except in a smoke run, whose figures mean nothing.
    is_default = fault == "kill" and options.size is not Size.SMOKE
    lease_seconds = 0 if is_default else engine.peer.lease_seconds
    if is_default and engine.peer.waits_long:
        return list(await asyncio.gather(*(run_fault(engine, folder, fault, lease_seconds) for folder in folders)))
    return [await run_fault(engine, folder, fault, lease_seconds) for folder in folders]
