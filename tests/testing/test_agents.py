"""Agents in Python under test: the program of docs/agents.md, killed at each point of its calls."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tenure.testing import Tenure, tool
from tests.testing.test_docs import BLOCKS, functions_in

pytestmark = pytest.mark.server
AGENTS = (Path(__file__).parents[2] / "docs" / "agents.md").read_text(encoding="utf-8")
BANK = """

async def pay_back(order, cents, *, idempotency_key):
    paid = json.loads(FILE.read_text()) if FILE.exists() else {}
    paid[idempotency_key] = [order, cents]
    FILE.write_text(json.dumps(paid))
    return f"{cents} cents"
"""


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The program of the page, with a bank."""
    code = re.search(r"`support\.py`:\n\n```python[^\n]*\n(.*?)```", AGENTS, re.DOTALL)
    assert code is not None
    imports = f"import json\nfrom pathlib import Path\n\nFILE = Path({str(tmp_path / 'paid.json')!r})\n"
    pays = "return await pay_back(order, cents, idempotency_key=tool_call().idempotency_key)\n"
    with_bank = re.sub(r'print\(f"the bank pays.*\n    return.*\n', pays, code[1])
    assert with_bank != code[1]
    (tmp_path / "support.py").write_text(imports + BANK + with_bank)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "support.py"


def paid(program: Path) -> list[Any]:
    return list(json.loads(program.with_name("paid.json").read_text()).values())


@pytest.mark.faults
@pytest.mark.parametrize("at", ["after model 1", "after outcome"])
def test_an_agent_dies_and_refunds_once(tenure: Tenure, program: Path, at: str) -> None:
    tenure.model.script([tool("refund", order="7", cents=500), "Refunded."])
    worker = tenure.worker(program=program)
    task = tenure.submit("Refund order 7", agent="support")
    worker.kill(at=at)
    tenure.worker(program=program)
    assert task.result().value == "Refunded."
    assert paid(program) == [["7", 500]]
    assert tenure.effects("refund") == 1


@pytest.mark.nightly
def test_the_example_of_the_page_runs(tenure: Tenure, program: Path) -> None:
    (code,) = (code for mark, code in BLOCKS if mark == "agents")
    for test in functions_in(code).values():
        test(tenure)
    assert paid(program) == [["7", 500]]


TYPED = """
from pydantic import BaseModel
from tenure.agents import Agent, Effect, Worker


class Refund(BaseModel):
    order: str
    cents: int


agent = Agent("typed", model="anthropic:claude-sonnet-4-5", output_type=Refund)


@agent.tool_plain(effect=Effect.PURE)
async def price(order: str) -> int:
    return 500


Worker([agent]).run()
"""


@pytest.mark.faults
def test_a_message_reaches_an_agent_with_a_typed_output(tenure: Tenure, tmp_path: Path) -> None:
    (tmp_path / "typed.py").write_text(TYPED)
    tenure.model.script([tool("price", order="7"), tool("final_result", order="7", cents=500)])
    worker = tenure.worker(program=tmp_path / "typed.py")
    task = tenure.submit("Refund order 7", agent="typed")
    worker.kill(at="after own-tool")
    task.send("and hurry")
    tenure.worker(program=tmp_path / "typed.py")
    assert task.result().value == {"order": "7", "cents": 500}
    kinds = [entry.kind for entry in task.entries()]
    assert kinds.index("user_message") < len(kinds) - 1 - kinds[::-1].index("assistant_message")
