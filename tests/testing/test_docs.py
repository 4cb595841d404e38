"""Every block of Python in docs/testing.md runs as it stands there, with the fixture `tenure`."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType
from typing import Any, Final

import pytest

from tenure.testing import POINTS, Stack, Tenure
from tenure.testing.pytest_plugin import SharedStack
from tests.testing.recorded import exported, recorded_run

pytestmark = pytest.mark.server
ROOT: Final = Path(__file__).parents[2]
PAGE: Final = (ROOT / "docs" / "testing.md").read_text(encoding="utf-8")
BLOCKS: Final = re.findall(r"^```python ?(\w*)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
BANK: Final = '''
import json
from pathlib import Path

FILE = Path(__file__).with_name("payments.json")

def _read():
    return json.loads(FILE.read_text()) if FILE.exists() else {}

def pay(order, *, key):
    """A second payment with the same key is none."""
    paid = _read()
    paid[key] = order
    FILE.write_text(json.dumps(paid))
    return "paid"

def payments(order):
    return list(_read().values()).count(order)
'''


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The page's functions and the bank that they use, as modules of the reader."""
    (functions,) = (code for mark, code in BLOCKS if mark == "bank")
    (tmp_path / "bank.py").write_text(BANK)
    (tmp_path / "shop_functions.py").write_text(functions)
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("bank", None)


def functions_in(code: str) -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": "page"}
    exec(compile(code, "docs/testing.md", "exec"), names)
    return {
        name: value for name, value in names.items() if name.startswith("test_") and isinstance(value, FunctionType)
    }


def arguments_of(test: Any) -> list[dict[str, Any]]:
    """What pytest would call it with."""
    marks = [mark for mark in getattr(test, "pytestmark", []) if mark.name == "parametrize"]
    return [dict(zip(mark.args[0], values, strict=True)) for mark in marks for values in mark.args[1]] or [{}]


@pytest.mark.nightly
@pytest.mark.usefixtures("shop")
@pytest.mark.parametrize("number", [n for n, (mark, code) in enumerate(BLOCKS) if not mark and "\ndef test_" in code])
def test_a_block_runs(tenure_stack: SharedStack, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    for test in functions_in(BLOCKS[number][1]).values():
        for arguments in arguments_of(test):
            with tenure_stack.session() as tenure:
                monkeypatch.setenv("TENURE_ADDRESS", tenure.address)
                monkeypatch.setenv("TENURE_TENANT", tenure.tenant)
                test(tenure, **arguments)


@pytest.mark.nightly
def test_a_recorded_run_becomes_a_test(tenure: Tenure, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run has a sub-agent and a message. Its file is made by the page's command."""
    (tmp_path / "runs").mkdir()
    exported(tenure, recorded_run(tenure), tmp_path).rename(tmp_path / "runs" / "order_7.jsonl")
    assert "tenure tasks entries TASK --json -v > runs/order_7.jsonl" in PAGE
    monkeypatch.chdir(tmp_path)
    (code,) = (code for mark, code in BLOCKS if mark == "recorded")
    for test in functions_in(code).values():
        test(tenure)


@pytest.mark.nightly
async def test_a_block_with_asyncio_runs(tenure: Tenure) -> None:
    (code,) = (code for mark, code in BLOCKS if mark == "asyncio")
    for test in functions_in(code).values():
        await test(tenure)


def test_the_options_of_the_page_are_those_of_the_stack() -> None:
    (code,) = (code for _, code in BLOCKS if "def tenure_options" in code)
    (returned,) = re.findall(r"return (\{.*\})$", code, re.MULTILINE)
    options = eval(returned, {"Path": Path})
    inspect.signature(Stack).bind(**options)
    assert Stack(**options).is_running is False


@pytest.mark.nightly
def test_the_stack_runs_without_pytest(tmp_path: Path) -> None:
    (code,) = (code for _, code in BLOCKS if "__main__" in code)
    program = tmp_path / "hello.py"
    program.write_text(code)
    done = subprocess.run(
        [sys.executable, program],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("Hello.\n", "")


def test_the_page_has_every_point() -> None:
    named = set(re.findall(r"`((?:before|after) [a-z-]+)(?: [\d.]+)?`", PAGE))
    assert named == set(POINTS)
    blocks_run = [code for mark, code in BLOCKS if mark or "def test_" in code or "tenure_options" in code]
    assert len(blocks_run) == len(BLOCKS) - 1  # and the one without pytest
