"""README.md and docs/tutorial.md as a reader follows them, in an empty folder: files, commands, the kill, the test."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
import tempfile
from asyncio.subprocess import DEVNULL, PIPE, STDOUT, Process
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Final

import pytest

from tests.support.patience import PATIENCE_SECONDS

pytestmark = [pytest.mark.server, pytest.mark.timeout(600), pytest.mark.nightly]
ROOT: Final = Path(__file__).parents[2]
PAGE: Final = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
FILES: Final = dict(
    re.findall(r"`(shop\.py|shop\.yaml|test_shop\.py)`[^\n]*:\n\n```\w+\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
)
README: Final = (ROOT / "README.md").read_text(encoding="utf-8")
COMMANDS: Final = re.findall(r"^(tenure .*|python .*)$", PAGE + README, re.MULTILINE)
BIN: Final = Path(sys.executable).parent


def environment() -> dict[str, str]:
    """A shell in which the environment is activated, without keys."""
    ours = ("ANTHROPIC_", "OPENAI_", "TENURE_", "PYTEST_", "COLUMNS")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    return {**kept, "PATH": f"{BIN}:{kept['PATH']}", "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}


class Reader:
    """Types the commands of the page in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    async def start(self, command: str, **options: int) -> Process:
        assert command in COMMANDS, f"the page has no line {command!r}"
        return await self._process(command, **options)

    async def run(self, command: str, task_id: str = "", extra: str = "") -> str:
        """Runs a command of the page with this task instead of TASK, and returns what it printed."""
        assert command in COMMANDS, f"the page has no line {command!r}"
        process = await self._process(command.replace("TASK", task_id) + extra, stdout=PIPE, stderr=STDOUT)
        async with asyncio.timeout(PATIENCE_SECONDS):
            out, _ = await process.communicate()
        assert process.returncode == 0, out.decode()
        return out.decode()

    async def _process(self, command: str, **options: int) -> Process:
        given = {"stdout": DEVNULL, "stderr": DEVNULL, **options}
        return await asyncio.create_subprocess_shell(
            f"exec {command}",
            cwd=self.folder,
            env=environment(),
            **given,  # type: ignore[arg-type]  # the streams
        )

    @asynccontextmanager
    async def running(self, command: str) -> AsyncIterator[Process]:
        with (self.folder / "log.txt").open("ab") as log:
            process = await self.start(command, stdout=log.fileno(), stderr=log.fileno())
        try:
            yield process
        finally:
            if process.returncode is None:
                process.send_signal(signal.SIGINT)
            async with asyncio.timeout(PATIENCE_SECONDS):
                await process.wait()

    async def until(self, holds: Callable[[], bool]) -> None:
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                while not holds():
                    await asyncio.sleep(0.05)
        except TimeoutError:
            pytest.fail((self.folder / "log.txt").read_text(errors="replace"))

    @property
    def bank(self) -> list[str]:
        path = self.folder / "bank.txt"
        return path.read_text().splitlines() if path.exists() else []


@pytest.fixture
def reader() -> Iterator[Reader]:
    """In a folder that other accounts may enter: as root Postgres runs under another one."""
    with tempfile.TemporaryDirectory(prefix="tenure-tutorial-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        for file, text in FILES.items():
            (folder / file).write_text(text)
        yield Reader(folder)


def test_the_page_has_its_files() -> None:
    assert set(FILES) == {"shop.py", "shop.yaml", "test_shop.py"}


async def test_the_killed_agent_goes_on(reader: Reader) -> None:
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(reader.running("tenure dev --scenario shop.yaml"))
        await reader.until((reader.folder / ".tenure" / "dev.json").exists)
        worker = await stack.enter_async_context(reader.running("python shop.py"))
        watch = await reader.start('tenure submit "Refund order 7" --agent shop --watch', stdout=PIPE)
        await reader.until(lambda: len(reader.bank) == 1)
        worker.kill()
        again = await stack.enter_async_context(reader.running("python shop.py"))
        async with asyncio.timeout(PATIENCE_SECONDS):
            out, _ = await watch.communicate()
        text = out.decode()
        assert watch.returncode == 0, text
        assert [text.index(line) for line in ("→ refund", "WORKER_LOST", "takes over", "Refunded: 500 cents.")]
        assert text.count("I refund it.") == 1
        assert len(reader.bank) == 2
        assert len(set(reader.bank)) == 1, "the key of the repeat is another one"
        task_id = text.split()[1]
        assert "SUCCEEDED" in await reader.run("tenure get TASK", task_id)
        assert "WORKER_LOST" in await reader.run("tenure tasks entries TASK", task_id)
        assert "Ended as SUCCEEDED" in await reader.run("tenure explain TASK", task_id)
        again.send_signal(signal.SIGINT)
        await again.wait()
        await approve(reader, stack)


async def test_the_first_screen_of_the_readme_runs_as_written(reader: Reader) -> None:
    """Without a key and without a scenario: the simulated model calls the agent's own tool."""
    (program,) = re.findall(r"^`shop\.py`[^\n]*:\n\n```python\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    (reader.folder / "shop.py").write_text(program)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(reader.running("tenure dev"))
        await reader.until((reader.folder / ".tenure" / "dev.json").exists)
        worker = await stack.enter_async_context(reader.running("python shop.py"))
        command = 'tenure submit "Refund order 7 with 500 cents" --agent shop --watch'
        watch = await reader.start(command, stdout=PIPE)
        paid = "the bank pays 500 cents, once for the key"
        await reader.until(lambda: paid in (reader.folder / "log.txt").read_text(errors="replace"))
        worker.kill()
        await stack.enter_async_context(reader.running("python shop.py"))
        async with asyncio.timeout(PATIENCE_SECONDS):
            out, _ = await watch.communicate()
        text = out.decode()
        assert watch.returncode == 0, text
        assert [text.index(line) for line in ("→ refund", "WORKER_LOST", "takes over", "Done. refund: 500 cents")]
        keys = re.findall(rf"{paid} (\S+)", (reader.folder / "log.txt").read_text(errors="replace"))
        assert len(keys) == 2
        assert len(set(keys)) == 1, "the key of the repeat is another one"


async def approve(reader: Reader, stack: AsyncExitStack) -> None:
    """The section about the person."""
    changed = "@agent.tool_plain(effect=Effect.KEYED, requires_approval=True)"
    assert changed in PAGE
    program = reader.folder / "shop.py"
    program.write_text(FILES["shop.py"].replace("@agent.tool_plain(effect=Effect.KEYED)", changed))
    await stack.enter_async_context(reader.running("python shop.py"))
    task_id = (await reader.run('tenure submit "Refund order 8" --agent shop')).split()[0]
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not (waits := await reader.run("tenure waits", extra=" --json")).strip().startswith("{"):
            await asyncio.sleep(0.1)
    wait_id = re.search(r'"wait_id": ?"(\w+)"', waits)
    assert wait_id, waits
    assert len(reader.bank) == 2
    # A terminal asks for confirmation; a script names the wait.
    await reader.run("tenure resume TASK --approve", task_id, f" --wait {wait_id[1]} --yes")
    assert "Refunded: 500 cents." in await reader.run("tenure watch TASK", task_id)
    assert len(reader.bank) == 3


async def test_the_crash_test_of_the_page_passes(reader: Reader) -> None:
    (reader.folder / "pytest.ini").write_text("[pytest]\n")
    assert "1 passed" in await reader.run("python -m pytest", extra=" -q -p no:cacheprovider")
