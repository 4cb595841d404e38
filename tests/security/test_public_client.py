"""The public client of a gateway that demands a key and TLS, in both forms, as docs/client.md shows it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tenure import Client, ClientTls, PermissionDenied, SyncClient, TaskState, Unauthenticated, Unavailable
from tenure.domain.access import Permission
from tests.end_to_end.test_client_docs import blocks, run_block
from tests.security.guarded import Guarded
from tests.support.patience import PATIENCE_SECONDS


async def test_the_documented_way_to_connect(guarded: Guarded, monkeypatch: pytest.MonkeyPatch) -> None:
    key = await guarded.key(Permission.WRITE)
    monkeypatch.chdir(guarded.ca_file.parent)
    (block,) = blocks("guarded")
    names = await run_block(block, address=guarded.address, key=key.secret)
    assert (names["task"].state, names["task"].info.tenant) == (TaskState.SUCCEEDED, "acme")


async def test_key_and_files_come_from_the_environment(
    guarded: Guarded, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    key = tmp_path / "key"
    key.write_text((await guarded.key(Permission.WRITE)).secret)
    for name, value in {"ADDRESS": guarded.address, "API_KEY_FILE": key, "TLS_CA_FILE": guarded.ca_file}.items():
        monkeypatch.setenv(f"TENURE_{name}", str(value))

    def work() -> str:
        with SyncClient() as client:
            task = client.submit("Say hello", model="sim-hello")
            assert [event.sequence for event in task.events(live=False)][:3] == [1, 2, 3]
            return task.result(timeout=PATIENCE_SECONDS)

    assert (await asyncio.to_thread(work)).startswith("Hello!")


async def test_a_key_that_does_not_suffice_says_what_to_do(guarded: Guarded) -> None:
    key, tls = await guarded.key(Permission.READ), ClientTls(guarded.ca_file)
    async with Client(guarded.address, api_key=key.secret, tls=tls) as client:
        assert "read_file" in {tool.name for tool in await client.tools()}
        with pytest.raises(PermissionDenied, match="use a key that has this permission"):
            await client.submit("Say hello")
    async with Client(guarded.address, api_key="tnr_wrong", tls=tls) as client:
        with pytest.raises(Unauthenticated, match="set TENURE_API_KEY"):
            await client.tools()
    async with Client(guarded.address, tls=True) as client:  # an authority that does not know this gateway
        with pytest.raises(Unavailable):
            await client.tools()
