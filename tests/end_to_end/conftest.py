"""One installation for tests that break nothing, and one of its own for each test that does."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import yaml

from tenure.client import Client
from tenure.dev.stack import Stack, StackOptions
from tests.end_to_end.installation import Installation
from tests.end_to_end.scenarios import SCENARIOS


def options(folder: Path, **changes: Any) -> StackOptions:
    scenarios = folder / "scenarios"
    scenarios.mkdir()
    for name, turns in SCENARIOS.items():
        (scenarios / f"{name}.yaml").write_text(yaml.safe_dump(turns))
    return StackOptions(data_dir=folder / "data", scenarios=scenarios, **{"workers": 2, **changes})


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def shared_stack(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    async with Stack(options(tmp_path_factory.mktemp("shared-stack"))) as stack:
        yield stack


@pytest.fixture
async def installation(shared_stack: Stack) -> AsyncIterator[Installation]:
    """Shared: nothing of it may be broken."""
    async with Client(shared_stack.gateway_address) as client:
        yield Installation(shared_stack, client)


@pytest.fixture
async def own_installation(tmp_path: Path) -> AsyncIterator[Installation]:
    """The test's own, with embedded stores, two workers, and everything to be broken."""
    async with Stack(options(tmp_path)) as stack, Client(stack.gateway_address) as client:
        yield Installation(stack, client)
