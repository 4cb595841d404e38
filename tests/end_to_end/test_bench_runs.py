"""Every section of the bench runs to its end and measures something. What it measures in a smoke run means nothing."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from bench.__main__ import LONG_NAMES, NAMES
from tests.support.patience import PATIENCE_SECONDS

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.server, pytest.mark.timeout(600), pytest.mark.nightly]


async def run_module(*arguments: str) -> str:
    """The output of `python -m …`, which has to end well."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", *arguments, cwd=ROOT, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    try:
        output, errors = await asyncio.wait_for(process.communicate(), 4 * PATIENCE_SECONDS)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, errors.decode()
    return output.decode()


@pytest.mark.parametrize("name", [*NAMES, *LONG_NAMES])
async def test_a_section_of_the_bench_runs(name: str, tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    printed = await run_module("bench", name, "--smoke", "--data", str(tmp_path), "--json", str(figures))
    sections: list[dict[str, Any]] = json.loads(figures.read_text())["sections"]
    assert sections
    for section in sections:
        assert section["title"] in printed
        assert section["figures"] or section["how"].startswith("Not measured: "), section
    assert not list(tmp_path.glob("tenure-bench-*")), "it removes its data"
