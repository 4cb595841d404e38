"""LeaseService at the gateway, and `tenure leases` on it: users know one address."""

from __future__ import annotations

import asyncio
import itertools
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any

import pytest
import pytest_asyncio
from click.testing import CliRunner, Result

from tenure.cli.exit_codes import Exit
from tenure.cli.main import cli
from tenure.client import Client
from tenure.client.leases import HeldLease, watch_leases
from tenure.domain.errors import LeaseHeld, OutOfRange, TryLater, Unavailable
from tenure.runtime.rpc.client import open_channel
from tenure.v1 import lease_service_pb2 as pb
from tenure.wire.token import read_claims
from tests.support.fix_coordinator import Fleet
from tests.support.fix_leases import Leases
from tests.support.patience import PATIENCE_SECONDS
from tests.support.service_process import ServiceProcess

pytestmark = [pytest.mark.server, pytest.mark.asyncio(loop_scope="module")]
_tenants = itertools.count(1)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway_process(lease_fleet: Fleet, lease_replicas: list[str]) -> AsyncIterator[ServiceProcess]:
    settings = {
        "CHECKPOINT_ADDRESS": lease_fleet.checkpoint.address,
        "COORDINATOR_ADDRESS": ",".join(lease_replicas),
    }
    async with gateway_with(settings) as process:
        yield process


@asynccontextmanager
async def gateway_with(settings: dict[str, str]) -> AsyncIterator[ServiceProcess]:
    process = ServiceProcess("gateway", {"LISTEN": "127.0.0.1:0", **settings})
    try:
        yield await process.start()
    finally:
        await process.kill()


@pytest.fixture
def tenant() -> str:
    """The test's own."""
    return f"gateway-{next(_tenants)}"


@pytest_asyncio.fixture(loop_scope="module")
async def client(gateway_process: ServiceProcess, tenant: str) -> AsyncIterator[Client]:
    async with Client(gateway_process.address, tenant=tenant) as connected:
        yield connected


@pytest.fixture
def run(gateway_process: ServiceProcess, tenant: str) -> Any:
    """A command line as it is typed, in a thread: it has a loop of its own."""

    async def invoke(*words: str) -> Result:
        arguments = ["--address", gateway_process.address, "--tenant", tenant, *words]
        return await asyncio.to_thread(CliRunner().invoke, cli, arguments)

    return invoke


async def test_a_lease_is_held_through_the_gateway_as_at_a_coordinator(
    client: Client, tenant: str, lease_replicas: list[str]
) -> None:
    async with HeldLease(client.leases, "a", holder="one", ttl_seconds=30) as held:
        assert read_claims(held.token).resource == "leases/a"
        with pytest.raises(LeaseHeld) as refused:
            async with HeldLease(client.leases, "a", holder="two"):
                pass
        assert refused.value.metadata["holder"] == "one"
        assert refused.value.retry_after_seconds is not None
        async with open_channel(lease_replicas[1], tenant=tenant) as channel:
            assert (await Leases(channel).get("a")).epoch == held.epoch
        assert [
            lease.resource
            async for lease in client.items(client.leases.ListLeases, pb.ListLeasesRequest(), lambda page: page.leases)
        ] == ["a"]


async def test_a_watch_through_the_gateway_gets_the_events(client: Client) -> None:
    revision = (await client.leases.ListLeases(pb.ListLeasesRequest())).revision
    async with HeldLease(client.leases, "a", holder="one"):
        pass
    kinds = []
    async with asyncio.timeout(PATIENCE_SECONDS), aclosing(watch_leases(client.leases, "", revision)) as events:
        async for event in events:
            kinds.append(event.WhichOneof("change"))
            if len(kinds) == 2:
                break
    assert kinds == ["held", "ended"]
    with pytest.raises(OutOfRange):
        await anext(watch_leases(client.leases, "", 1))


async def test_a_watch_ends_when_the_gateway_drains(lease_fleet: Fleet, lease_replicas: list[str]) -> None:
    async with gateway_with({"COORDINATOR_ADDRESS": lease_replicas[0]}) as process:
        async with Client(process.address) as client:
            answers = aiter(client.leases.WatchLeases(pb.WatchLeasesRequest()))
            await anext(answers)
            stopping = asyncio.create_task(process.stop())
            with pytest.raises(Unavailable) as ended:
                async with asyncio.timeout(PATIENCE_SECONDS):
                    await anext(answers)
            assert ended.value.reason == "DRAINING"
        assert await stopping == 0


async def test_watchers_that_leave_in_the_middle_leave_nothing(lease_replicas: list[str], tenant: str) -> None:
    """The coordinator lets a tenant watch with 64 streams: so many again begin only when the former are closed."""
    async with gateway_with({"COORDINATOR_ADDRESS": lease_replicas[0]}) as process:
        async with Client(process.address, tenant=tenant) as client, asyncio.timeout(PATIENCE_SECONDS):
            for _ in range(2):
                watches = [await begun_watch(client) for _ in range(64)]
                for watch in watches:
                    watch.cancel()
            await begun_watch(client)
        assert await process.stop() == 0
    assert [line for line in process.lines if line["level"] not in {"INFO", "WARNING"}] == []
    assert "never retrieved" not in process.log_text()


async def begun_watch(client: Client) -> Any:
    """A watch with its first answer, begun as soon as the coordinator has room for it."""
    while True:
        watch = client.leases.WatchLeases(pb.WatchLeasesRequest())
        try:
            await anext(aiter(watch))
        except TryLater:
            await asyncio.sleep(0.05)
        else:
            return watch


async def test_the_command_lists_leases_and_holders(run: Any, client: Client) -> None:
    assert (await run("leases", "list")).stderr == "no lease is held\n"
    async with HeldLease(client.leases, "tables/a", holder="one") as held:
        table = (await run("leases", "list", "tables/")).stdout.splitlines()
        assert table[1].split()[:2] == ["tables/a", "one"]
        (listed,) = values(await run("--json", "leases", "list"))
        assert (listed["resource"], listed["epoch"]) == ("tables/a", held.epoch)
        shown = (await run("leases", "get", "tables/a")).stdout
        assert "tables/a is held by one" in shown
        assert str(held.epoch) not in shown
        assert str(held.epoch) in (await run("leases", "get", "tables/a", "-v")).stdout
        assert "previous lease: none" in shown
    gone = await run("leases", "get", "tables/a")
    assert (gone.exit_code, gone.stderr) == (Exit.REFUSED, "tenure: tables/a has no holder\n")


async def test_the_command_acquires_or_names_the_holder(run: Any) -> None:
    (lease,) = values(await run("--json", "leases", "acquire", "a", "--holder", "operator", "--ttl", "30s"))
    assert (lease["holder"], lease["ttl_seconds"]) == ("operator", 30.0)
    refused = await run("leases", "acquire", "a", "--holder", "other")
    assert refused.exit_code == Exit.NOT_YET
    assert refused.stderr.startswith("tenure: a is held by operator; without a renewal the lease ends in ")


async def test_an_operator_takes_a_lease_away_with_a_reason_only(run: Any, client: Client) -> None:
    async with HeldLease(client.leases, "a", holder="one", ttl_seconds=30, cancel_on_loss=False) as held:
        assert (await run("leases", "release", "a")).exit_code == Exit.USAGE
        late = await run("leases", "release", "a", "--epoch", str(held.epoch - 1), "--reason", "stuck")
        assert late.exit_code == Exit.REFUSED
        assert (await run("leases", "release", "a", "--reason", "stuck")).exit_code == Exit.OK
    async with HeldLease(client.leases, "a", holder="two") as after:
        assert (after.info.reason, after.info.message) == ("OPERATOR_RELEASED", "stuck")


async def test_an_operator_hands_a_lease_over(run: Any, client: Client) -> None:
    async with HeldLease(client.leases, "a", holder="one", ttl_seconds=30, cancel_on_loss=False) as held:
        (moved,) = values(await run("--json", "leases", "transfer", "a", "two", "--reason", "rebalanced"))
        assert (moved["holder"], moved["previous_epoch"]) == ("two", held.epoch)
        async with HeldLease(client.leases, "a", holder="two") as own:
            assert own.epoch > moved["epoch"]
            assert (own.info.reason, own.info.message) == ("OPERATOR_TRANSFER", "rebalanced")


async def test_the_command_shows_the_keys(run: Any) -> None:
    (key,) = values(await run("--json", "leases", "keys"))
    assert (key["key_id"], key["active"]) == ("test-1", True)
    assert (await run("leases", "keys")).stdout.split() == ["test-1", key["public_key"], "active"]


async def test_the_command_watches(gateway_process: ServiceProcess, client: Any, tenant: str) -> None:
    words = ["--address", gateway_process.address, "--tenant", tenant, "--json", "leases", "watch", "w/"]
    revision = (await client.leases.ListLeases(pb.ListLeasesRequest())).revision
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tenure.cli", *words, "--after", str(revision), stdout=subprocess.PIPE
    )
    try:
        async with HeldLease(client.leases, "w/a", holder="one"):
            pass
        async with asyncio.timeout(PATIENCE_SECONDS):
            assert process.stdout is not None
            lines = [json.loads(await process.stdout.readline()) for _ in range(2)]
    finally:
        process.terminate()
        await process.wait()
    assert [(line["kind"], line["lease"]["holder"]) for line in lines] == [("HELD", "one"), ("ENDED", "one")]


def values(result: Result) -> list[Any]:
    assert result.exit_code == 0, result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()]
