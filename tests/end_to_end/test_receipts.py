"""An approved refund: its receipts are verified without the installation, and a changed record is noticed."""

from __future__ import annotations

import json
import subprocess
import uuid
from pathlib import Path

import psycopg
import pytest

from tenure import Client, TransitionEvent
from tenure.cli.exit_codes import Exit
from tests.end_to_end.command import Done, tenure
from tests.end_to_end.installation import Installation
from tests.support.patience import CALL_SECONDS

pytestmark = pytest.mark.server
NODE_SCRIPT = Path(__file__).parents[2] / "examples" / "verify_receipt.mjs"
UNSAFE = "append_record_unsafe"


async def approved_task(installation: Installation) -> str:
    """A task whose first call of an UNSAFE tool was approved, and the second one denied."""
    async with Client(installation.stack.gateway_address) as client:
        task = await client.submit(uuid.uuid4().hex, model="sim-e2e-leave", approve_tools=[UNSAFE])
        answered: set[str] = set()
        async for event in task.events():
            if isinstance(event, TransitionEvent) and event.wait is not None and event.wait.wait_id not in answered:
                await (task.deny if answered else task.approve)(event.wait)
                answered.add(event.wait.wait_id)
        await task.result()
        lines = await task.receipts()
        assert [json.loads(line).keys() - {"key_id", "signature"} for line in lines] == [{"receipt"}, {"head"}]
        return task.id


async def test_receipts_of_an_approved_refund_are_verified_offline(
    installation: Installation, tmp_path: Path, node: Path
) -> None:
    address = installation.stack.gateway_address
    task_id = await approved_task(installation)
    receipts, keys = tmp_path / "receipts.jsonl", tmp_path / "keys.jsonl"
    receipts.write_bytes((await tenure("tools", "receipts", task_id, address=address)).out.encode())
    keys.write_text((await tenure("--json", "leases", "keys", address=address)).out)

    async def verified(*arguments: str) -> Done:
        return await tenure("--json", "receipts", "verify", str(receipts), "--keys", str(keys), *arguments)

    done = await verified()
    assert done.code == Exit.OK, done.err
    assert (done.values[0]["task_id"], done.values[0]["receipts"], done.values[0]["open_calls"]) == (task_id, 1, [])
    assert (await verified("--noted", done.values[0]["head"])).code == Exit.OK
    assert (await verified("--installation", "elsewhere")).code == Exit.INVARIANT_VIOLATED
    by_node = subprocess.run(
        [node, NODE_SCRIPT, keys, receipts], capture_output=True, timeout=CALL_SECONDS, check=False
    )
    assert by_node.returncode == 0, by_node.stderr

    receipt = json.loads(receipts.read_text().splitlines()[0])["receipt"]
    call = receipt["tool_service"]["record"]["call"]
    assert receipt["ledger"]["approval"]["answer"] == "allow"
    assert receipt["ledger"]["outcome"]["sha256"] == receipt["tool_service"]["outcome"]["sha256"]
    shown = await tenure("tools", "receipt", task_id, call, address=address)
    assert f"approved   by {receipt['ledger']['approval']['actor']}" in shown.out
    alone = await tenure("--json", "tools", "receipt", task_id, call, address=address)
    single = await tenure("receipts", "verify", "-", stdin=alone.out, address=address)
    assert "genuine: number 1 of task" in single.out, single.err

    receipts.write_text(receipts.read_text().replace('"allow"', '"maybe"'))
    refused = await verified()
    assert (refused.code, "the signature does not match" in refused.err) == (Exit.INVARIANT_VIOLATED, True)


@pytest.mark.faults
async def test_outcome_changed_in_the_database_is_noticed(installation: Installation) -> None:
    address, task_id = installation.stack.gateway_address, await approved_task(installation)
    assert (await tenure("admin", "verify", task_id, address=address)).code == Exit.OK
    other_content = "update tools.calls set outcome = outcome || %s where task_id = %s and tool = %s"
    values = [bytes.fromhex("12024f4b"), task_id, UNSAFE]  # the field `content` once more: "OK"
    async with await psycopg.AsyncConnection.connect(installation.stack.postgres_dsn, autocommit=True) as postgres:
        with pytest.raises(psycopg.errors.CheckViolation, match="has a receipt"):
            await postgres.execute(other_content, values)
        await postgres.execute("set session_replication_role = replica")  # no trigger stops this hand
        assert (await postgres.execute(other_content, values)).rowcount == 1
    checked = await tenure("admin", "verify", task_id, address=address)
    assert (checked.code, "I42" in checked.out) == (Exit.INVARIANT_VIOLATED, True), checked.out
    refused = await tenure("tools", "receipts", task_id, address=address)
    assert (refused.code, "no receipt is signed" in refused.err) == (Exit.INVARIANT_VIOLATED, True), refused.err
