"""`python -m bench.peers` runs every engine to its end, on real servers. The figures of a smoke run mean nothing.

The run of all engines installs six products of others and takes up to ten minutes, so it needs TENURE_TEST_PEERS=1.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from bench.peers.environment import Environment, NotInstalledError
from bench.peers.peers import PEERS
from tests.support.patience import PATIENCE_SECONDS

ROOT = Path(__file__).parents[2]
ENVIRONMENT = ROOT / ".peers"
pytestmark = [pytest.mark.server, pytest.mark.timeout(900), pytest.mark.nightly]


async def run_peers(*arguments: str, seconds: float) -> tuple[int | None, str]:
    """The exit code of `python -m bench.peers …`, and what it printed to both outputs."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "bench.peers", "--environment", str(ENVIRONMENT), *arguments),
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        output, _ = await asyncio.wait_for(process.communicate(), seconds)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return process.returncode, output.decode()


@pytest.fixture
def installed_peers() -> None:
    """Installs the peers, as `make bench-peers` does. Skips without TENURE_TEST_PEERS=1, or without the registries."""
    if os.environ.get("TENURE_TEST_PEERS") != "1":
        pytest.skip("set TENURE_TEST_PEERS=1 to install and run the other engines")
    for peer in PEERS:
        try:
            Environment(ENVIRONMENT).install(peer, print)
        except NotInstalledError as error:
            if not error.is_unreachable:
                raise
            pytest.skip(f"a package registry cannot be reached: {error}")


@pytest.mark.usefixtures("installed_peers")
async def test_all_engines_run_and_the_page_is_written(tmp_path: Path) -> None:
    docs = tmp_path / "docs"
    docs.mkdir()
    tmp_path.chmod(0o711)
    code, printed = await run_peers("--smoke", "--docs", str(docs), "--data", str(tmp_path), seconds=700)
    assert code == 0, printed
    engines: list[dict[str, Any]] = json.loads((docs / "peers.json").read_text())["engines"]
    assert [engine["name"] for engine in engines] == ["tenure-step", "tenure", *(peer.name for peer in PEERS)]
    for engine in engines:
        assert [load["at_once"] for load in engine["loads"]] == [1, 32]
        for load in engine["loads"]:
            assert load["steps_per_second"]["median"] > 0
            assert load["at_once"] == 1 or load["bytes_per_step"]["median"] > 1000
    recorded_step, *tried = engines
    assert recorded_step["effects_repeated_by_a_zombie"] == [], "no tool service fences the effect of a recorded step"
    assert all(engine["kill_to_effect_elsewhere_seconds"][0] > 0 for engine in tried)
    repeated = {engine["name"]: engine["effects_repeated_by_a_zombie"] for engine in tried}
    assert repeated.pop("tenure") == [0]
    assert all(min(counts) >= 1 for counts in repeated.values()), "the woken worker makes the effect it stopped before"
    page = (docs / "peers.md").read_text()
    assert all(engine["title"] in page for engine in engines)
    assert not list(tmp_path.glob("tenure-peers-*")), "it removes its data"


async def test_some_engines_make_no_page(tmp_path: Path) -> None:
    code, printed = await run_peers("tenure", "--docs", str(tmp_path), seconds=4 * PATIENCE_SECONDS)
    assert code == 2
    assert "--docs writes the comparison of all engines: give no names with it" in printed
