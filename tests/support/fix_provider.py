"""examples/provider_node as a process: a backend that is not ours, in another language, over a table of its own.

provider = await node_provider()          provider.address        for the tool service's config file
provider.moves()                          what truly happened, outside of the system
"""

from __future__ import annotations

import asyncio
import json
import shutil
import sqlite3
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.support.fix_node import packages
from tests.support.patience import PATIENCE_SECONDS

REPOSITORY = Path(__file__).parents[2]
EXAMPLES = REPOSITORY / "examples"


class NodeProvider:
    """The process, to be killed and started again at the same address over the same table."""

    def __init__(self, node: Path, script: Path, database: Path) -> None:
        self._node, self._script, self.database = node, script, database
        self.address = "127.0.0.1:0"
        self.told: list[dict[str, Any]] = []
        self._heard = asyncio.Condition()

    async def start(self, *, answer_after_ms: int = 0, keys: Path | None = None) -> None:
        options = ["--listen", self.address, "--database", self.database, "--protos", REPOSITORY / "protos"]
        options += ["--answer-after-ms", str(answer_after_ms), *([] if keys is None else ["--keys", keys])]
        program = [self._node, "--disable-warning=ExperimentalWarning", self._script, *options]
        self.told.clear()
        self._process = await asyncio.create_subprocess_exec(*map(str, program), stdout=PIPE)
        self._reading = asyncio.create_task(self._read())
        self.address = (await self.tells(lambda line: "listening" in line))["listening"]

    async def tells(self, matches: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """The first line that it prints which matches, as soon as it is there."""
        async with asyncio.timeout(PATIENCE_SECONDS), self._heard:
            while True:
                for line in self.told:
                    if matches(line):
                        return line
                assert not self._reading.done(), "the provider ended"
                await self._heard.wait()

    async def wrote(self, tool: str) -> dict[str, Any]:
        """Returns when a call of the tool was done, whether it was answered or not."""
        return await self.tells(lambda line: line.get("tool") == tool)

    async def kill(self) -> None:
        """SIGKILL, and gone when it returns."""
        if self._process.returncode is None:
            self._process.kill()
        async with asyncio.timeout(PATIENCE_SECONDS):
            await self._process.wait()
            await self._reading

    def rows(self, statement: str, *parameters: object) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(self.database, timeout=PATIENCE_SECONDS)) as connection:
            rows = connection.execute(statement, parameters).fetchall()
            connection.commit()
            return rows

    def moves(self) -> list[tuple[str, int]]:
        """Keys and epochs of what was moved."""
        return self.rows("select idempotency_key, epoch from moves order by rowid")

    def shipments(self) -> int:
        return int(self.rows("select count(*) from shipments")[0][0])

    async def _read(self) -> None:
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            async with self._heard:
                self.told.append(json.loads(line))
                self._heard.notify_all()
        async with self._heard:
            self._heard.notify_all()


StartProvider = Callable[..., Awaitable[NodeProvider]]


@pytest.fixture
async def node_provider(node: Path, tmp_path: Path) -> AsyncIterator[StartProvider]:
    """Starts providers. Packages are looked for beside a script, so the script is copied to where they are linked."""
    folder = tmp_path / "examples" / "provider_node"
    shutil.copytree(EXAMPLES / "provider_node", folder)
    shutil.copy(EXAMPLES / "verify_token.mjs", folder.parent)
    (folder / "node_modules").symlink_to(packages())
    started: list[NodeProvider] = []

    async def start(**options: Any) -> NodeProvider:
        provider = NodeProvider(node, folder / "provider.mjs", tmp_path / f"stock-{len(started)}.db")
        started.append(provider)
        await provider.start(**options)
        return provider

    yield start
    for provider in started:
        await provider.kill()


@pytest.fixture
def tools_sections(tmp_path: Path) -> Callable[..., Path]:
    """Writes a config file of the tool service."""

    def write(**sections: Any) -> Path:
        path = tmp_path / "tools.yaml"
        path.write_text(json.dumps(sections))
        return path

    return write
