"""A model runner and the ledger's stops: what was not sent is not sent; what was sent goes on."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from tenure.v1 import admin_service_pb2 as admin_pb
from tests.conformance.test_models_calls import slow
from tests.conformance.test_models_rate_limited import ENDPOINT
from tests.conformance.test_models_settled import calling, of_runner, runner_of
from tests.conformance.test_models_waiting import LONG_SECONDS, accepted, attempts
from tests.support.fix_checkpoint import TIMEOUT_SECONDS, Checkpoint, MakeCheckpoint
from tests.support.fix_models import StartModels
from tests.support.fix_simulator import SimulatorControl
from tests.support.patience import PATIENCE_SECONDS

EVERYTHING: dict[str, Any] = {"all": True, "reason": "wrong bills", "actor": "user/ann"}


async def confirmed(replica: Checkpoint) -> None:
    """Returns when every reader keeps to the newest stops."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while (await _listed(replica)).late_readers:
            await asyncio.sleep(0.02)


async def _listed(replica: Checkpoint) -> Any:
    return await replica.stub.ListStops(admin_pb.ListStopsRequest(), timeout=TIMEOUT_SECONDS)


async def known(replica: Checkpoint) -> None:
    """Returns when a model runner reads the stops of this ledger."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not await replica.query("select reader from ledger.stop_readers"):
            await asyncio.sleep(0.02)


async def test_call_that_waits_for_a_limit_is_not_sent(
    checkpoint: MakeCheckpoint, model_runner: StartModels, simulator: SimulatorControl
) -> None:
    replica = await checkpoint()
    runner = await runner_of(replica, model_runner)
    await known(replica)
    first, waiting = [await replica.claim((await replica.create()).task_id, joins=True) for _ in range(2)]
    simulator.order_fault(status=429, retry_after_seconds=LONG_SECONDS, count=1)
    assert (await runner.generate(of_runner(first)).ended()).failure.error_class == "RATE_LIMITED"
    call = await accepted(runner, of_runner(waiting))
    await replica.stub.BeginStop(admin_pb.BeginStopRequest(**EVERYTHING), timeout=TIMEOUT_SECONDS)
    assert (await call.ended()).failure.error_class == "INTERRUPTED"
    await confirmed(replica)
    assert attempts(simulator, of_runner(waiting)) == []


async def test_call_that_comes_after_a_stop_is_not_sent(
    checkpoint: MakeCheckpoint, model_runner: StartModels, simulator: SimulatorControl
) -> None:
    """Its tokens were reserved before: its worker was slow. A call that was sent before goes on."""
    replica = await checkpoint()
    runner = await runner_of(replica, model_runner)
    await known(replica)
    slow(simulator)
    _, running = await calling(replica, runner)
    late = await replica.claim((await replica.create()).task_id, joins=True)
    await replica.stub.BeginStop(admin_pb.BeginStopRequest(**EVERYTHING), timeout=TIMEOUT_SECONDS)
    await confirmed(replica)
    ended = (await runner.generate(of_runner(late)).ended()).failure
    assert (ended.error_class, ended.retryable, ended.usage.input_tokens) == ("INTERRUPTED", True, 0)
    assert attempts(simulator, of_runner(late)) == []
    assert (await running.ended()).HasField("answer")


async def test_refused_call_does_not_move_after_a_stop(
    checkpoint: MakeCheckpoint, model_runner: StartModels, simulator: SimulatorControl, tmp_path: Path
) -> None:
    """The first endpoint has the call when the stop comes, and refuses it after the answer."""
    arrived, refuse = asyncio.Event(), asyncio.Event()

    async def overloaded(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        arrived.set()
        await refuse.wait()
        writer.write(b"HTTP/1.1 529 Overloaded\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
        writer.close()

    replica = await checkpoint()
    async with await asyncio.start_server(overloaded, "127.0.0.1", 0) as first:
        host, port = first.sockets[0].getsockname()
        urls = {"first": f"http://{host}:{port}", "second": simulator.url}
        file = tmp_path / "endpoints.toml"
        file.write_text("".join(f"{ENDPOINT.format(name=name, url=url)}\n" for name, url in urls.items()))
        runner = await runner_of(replica, model_runner, endpoints_file=file)
        await known(replica)
        owner = await replica.claim((await replica.create()).task_id, joins=True)
        call = runner.generate(of_runner(owner))
        async with asyncio.timeout(PATIENCE_SECONDS):
            await arrived.wait()
        await replica.stub.BeginStop(admin_pb.BeginStopRequest(**EVERYTHING), timeout=TIMEOUT_SECONDS)
        await confirmed(replica)
        refuse.set()
        failure = (await call.ended()).failure
    assert (failure.error_class, failure.retryable, failure.usage.input_tokens) == ("INTERRUPTED", True, 0)
    assert attempts(simulator, of_runner(owner)) == []
