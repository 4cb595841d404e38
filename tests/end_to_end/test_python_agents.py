"""docs/agents.md as a reader follows it: its blocks, its worker as a process, and submits from Python and a shell."""

from __future__ import annotations

import ast
import re
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import httpx2
import pytest

from devstack.child_process import ChildProcess
from tenure import Client, InvalidRequest
from tenure.cli.exit_codes import Exit
from tenure.runtime.http.outbound_http import http_tls_context
from tests.end_to_end.command import tenure
from tests.end_to_end.installation import Installation
from tests.support.patience import CALL_SECONDS

pytestmark = [pytest.mark.server, pytest.mark.nightly]
REPOSITORY: Final = Path(__file__).parents[2]
PAGE: Final = REPOSITORY / "docs" / "agents.md"
BLOCKS: Final = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
GIVEN: Final = """
async def pay_back(order, cents, idempotency_key):
    return f"refunded {cents} cents of {order}"
"""


class AgentWorker(ChildProcess):
    """The program of the page."""

    async def serves(self) -> bool:
        return '"attached"' in self.log()


@pytest.fixture
async def queue(installation: Installation, tmp_path: Path) -> Any:
    """A queue that the page's worker serves, with a model of the simulator's that says hello."""
    stack, queue = installation.stack, f"agents-{uuid.uuid4().hex[:12]}"
    program = tmp_path / "support.py"
    program.write_text(GIVEN + BLOCKS[0].replace("claude-sonnet-5", "sim-hello"))
    assert stack.simulator is not None
    addresses = stack.addresses()
    environment = {
        "TENURE_WORKER_QUEUES": queue,
        "TENURE_WORKER_COORDINATOR_ADDRESS": addresses["coordinator"],
        "TENURE_WORKER_CHECKPOINT_ADDRESS": addresses["checkpoint"],
        "TENURE_WORKER_TOOLS_ADDRESS": addresses["tools"],
        "ANTHROPIC_API_KEY": "sk-test",
        "ANTHROPIC_BASE_URL": stack.simulator.model_url,
        "PYTHONPATH": str(REPOSITORY),
    }
    worker = AgentWorker(queue, [sys.executable, str(program)], "", environment, stack.layout.logs / f"{queue}.log")
    worker.start()
    await worker.wait_ready()
    yield queue
    worker.kill()


async def test_the_worker_of_the_page_takes_submits(installation: Installation, queue: str) -> None:
    address = installation.stack.gateway_address
    async with Client(address) as client:
        task = await client.submit("Say hello", agent="support", queue=queue)
        result = await task.result()
        assert isinstance(result, str)
        assert result
        with pytest.raises(InvalidRequest, match="its code chooses it"):
            await client.submit("Say hello", agent="support", model="claude-opus-4-5")
        with pytest.raises(InvalidRequest, match="must not be blank"):
            await client.submit("", agent="support")
    submitted = await tenure("submit", "Say hello", "--agent", "support", "--queue", queue, "--watch", address=address)
    assert submitted.code == Exit.OK, submitted.out
    assert "Step 1  " in submitted.out
    refused = await tenure("submit", "Say hello", "--agent", "support", "--model", "m", address=address)
    assert refused.code == Exit.USAGE
    assert "chooses its model" in refused.err


async def test_the_agent_of_the_page_holds_a_chat(installation: Installation, queue: str) -> None:
    """By the chat of the AI SDK: the second message forks the task of the first one."""
    chat_id = uuid.uuid4().hex
    options = {"agent": "support", "queue": queue}
    tasks = []
    async with httpx2.AsyncClient(
        verify=http_tls_context(), base_url=installation.stack.http_url, timeout=CALL_SECONDS, trust_env=False
    ) as http:
        for number in range(2):
            message = {"id": f"m{number}", "role": "user", "parts": [{"type": "text", "text": f"Say hello {number}"}]}
            body = {"id": chat_id, "messages": [message], "task": options}
            answer = await http.post("/v1/ai/chat", json=body)
            assert answer.status_code == 200, answer.text
            assert '"finishReason": "stop"' in answer.text or '"finishReason":"stop"' in answer.text
            assert "text-delta" in answer.text
            tasks.append(re.search(r'"task_id": ?"([^"]+)"', answer.text))
    first, second = (found[1] for found in tasks if found is not None)
    fork = await installation.client.get(second)
    assert fork.forked_from.task_id == first


@pytest.fixture
def page(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """The names of all blocks, run one after another as one program."""
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-test")
    module = sys.modules["agents_docs"] = ModuleType("agents_docs")
    names = vars(module)
    names["archive"] = lambda number: number
    for block in BLOCKS:
        exec(compile(ast.parse(block), str(PAGE), "exec"), names)
    yield names
    del sys.modules["agents_docs"]


def test_the_blocks_of_the_page_make_functions(page: dict[str, Any]) -> None:
    names = [page[name].name for name in ("weather", "helper", "close_order")]
    assert names == ["weather", "assistant", "close_order"]
    assert page["agent"].durable_function.name == "support"
