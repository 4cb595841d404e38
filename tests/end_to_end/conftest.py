"""One installation for all: a test that breaks it has it alone, and whole again is what it leaves."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Generator
from pathlib import Path
from typing import Any, Final

import pytest
import pytest_asyncio

from devstack import Stack, StackOptions
from tenure.client import Client
from tests.end_to_end.installation import Installation
from tests.end_to_end.mending import cancel_all, mend
from tests.end_to_end.scenarios import PRICES, SCENARIOS
from tests.support.lives import SHORT_LIFE

FAILED: Final = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Fixtures are to know whether their test failed."""
    report = yield
    item.stash[FAILED] = item.stash.get(FAILED, False) or report.failed
    return report


def options(folder: Path, **changes: Any) -> StackOptions:
    scenarios = folder / "scenarios"
    scenarios.mkdir()
    for name, turns in SCENARIOS.items():
        (scenarios / f"{name}.yaml").write_text(json.dumps(turns, ensure_ascii=False))  # YAML, too, and made in C
    prices = folder / "prices.toml"
    prices.write_text(PRICES)
    changed = changes.pop("environment", {})
    checkpoint = {"TENURE_CHECKPOINT_PRICES_FILE": str(prices)}
    environment = {"checkpoint": checkpoint, **changed, "*": {**SHORT_LIFE, **changed.get("*", {})}}
    chosen = {"workers": 2, "http": True, **changes}
    return StackOptions(data_dir=folder / "data", scenarios=scenarios, environment=environment, **chosen)


@pytest_asyncio.fixture(scope="package", loop_scope="package")
async def shared_stack(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    async with Stack(options(tmp_path_factory.mktemp("shared-stack"))) as stack:
        yield stack


@pytest.fixture
async def installation(shared_stack: Stack) -> AsyncIterator[Installation]:
    """Shared: nothing of it may be broken."""
    async with Client(shared_stack.gateway_address) as client:
        yield Installation(shared_stack, client)


@pytest.fixture
async def own_installation(shared_stack: Stack, request: pytest.FixtureRequest) -> AsyncIterator[Installation]:
    """The same, while it is the test's own: two workers, no other work, and everything to be broken.

    What is down or drained afterwards is started again; after a failure everything, for who knows what it left.
    """
    async with Client(shared_stack.gateway_address) as client:
        install = Installation(shared_stack, client)
        await cancel_all(install)
        yield install
        await mend(install, everything=request.node.stash.get(FAILED, False))
