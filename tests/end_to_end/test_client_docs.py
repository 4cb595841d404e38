"""Every block of Python in docs/client.md runs as it stands there."""

from __future__ import annotations

import ast
import inspect
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import pytest
from starlette.testclient import TestClient

from tests.end_to_end.installation import Installation

pytestmark = [pytest.mark.server, pytest.mark.nightly]
PAGE: Final = Path(__file__).parents[2] / "docs" / "client.md"


def blocks(kind: str) -> list[str]:
    """The blocks of Python with this mark; "" for those without one."""
    found = re.findall(r"^```python ?(\w*)\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    return [code for mark, code in found if mark == kind]


async def run_block(code: str, **given: Any) -> dict[str, Any]:
    """Runs a block, which may await at its top level, and returns its names."""
    module = sys.modules["client_docs"] = ModuleType("client_docs")  # dataclasses look for the module of a class
    names = vars(module)
    names.update(given)
    result = eval(compile(code, str(PAGE), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), names)
    if inspect.iscoroutine(result):
        await result
    return names


@pytest.mark.parametrize("number", range(len(blocks(""))))
async def test_a_block_runs(installation: Installation, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    monkeypatch.setenv("TENURE_ADDRESS", installation.stack.gateway_address)
    names = await run_block(blocks("")[number])
    if "app" in names:
        with TestClient(names["app"]) as http:
            answer = http.post("/tasks", json="Say hello")
        assert (answer.status_code, answer.json()["state"]) == (202, "QUEUED")
