"""The package `tenure`: its names, what importing them costs, and the file that is generated from another."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import threading
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any, TypedDict, assert_type

import pytest
from pydantic import BaseModel

import tenure
from tenure import Client, Event, SyncClient, SyncTask, Task, Unavailable
from tenure.sdk import errors
from tenure.sdk.connection import GatewayConnection
from tenure.sdk.generate_sync import TARGET, generated
from tenure.sdk.loop_thread import LoopCalls
from tenure.sdk.task_info import TaskWait

ROOT = Path(__file__).parents[2]


class Price(BaseModel):
    dollars: float


class PriceDict(TypedDict):
    dollars: float


async def checked_by_mypy(client: Client, sync_client: SyncClient) -> None:
    """Never run: the type checker checks that results have the type that was asked for."""
    assert_type(await client.submit("x"), Task[str])
    assert_type(await client.submit("x", result=Price, max_cost=0.5, tools=["a"]), Task[Price])
    assert_type(await client.submit("x", result=PriceDict), Task[PriceDict])
    assert_type(await client.submit("x", result={"type": "object"}), Task[Any])
    assert_type(await client.submit("x", agent="pricing", input={"a": 1}, max_cost=0.5), Task[Any])
    assert_type(await client.submit("x", agent="pricing", result=Price), Task[Price])
    assert_type(await (await client.get("x", result=Price)).result(), Price)
    assert_type(sync_client.submit("x", result=Price).result(), Price)
    assert_type(sync_client.submit("x"), SyncTask[str])
    for event in sync_client.submit("x").events():
        assert_type(event, Event)
    async for task in client.tasks():
        assert_type(task, Task[str])
    await client.submit("x", max_csot=1)  # type: ignore[call-overload]  # a misspelt argument is noticed


def python(code: str) -> str:
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT, timeout=60)
    return run.stdout.strip()


def test_the_sync_client_is_generated_from_the_async_one() -> None:
    assert TARGET.read_text(encoding="utf-8") == generated(), "run python -m tenure.sdk.generate_sync"


def test_every_public_name_exists_and_is_listed() -> None:
    assert sorted(tenure._MODULE_OF) == list(tenure.__all__)
    assert {getattr(tenure, name).__name__ for name in tenure.__all__} == set(tenure.__all__)
    with pytest.raises(AttributeError, match="Clint"):
        _ = tenure.Clint


def test_the_rules_are_imported_without_grpc() -> None:
    assert python("import sys, tenure.domain; print('grpc' in sys.modules, 'google' in sys.modules)") == "False False"


def test_the_client_is_imported_without_pydantic() -> None:
    heavy = "{'pydantic', 'jsonschema', 'mcp', 'anthropic', 'openai', 'click', 'rich', 'psycopg', 'etcd3'}"
    assert python(f"import sys, tenure; tenure.Client, tenure.SyncClient; print({heavy} & set(sys.modules))") == "set()"


def test_a_start_of_the_command_imports_no_grpc_and_no_tables() -> None:
    """`tenure --version` and a Tab in a shell need neither."""
    imported = python("import sys, tenure.cli.main; print({'grpc', 'google', 'rich', 'asyncio'} & set(sys.modules))")
    assert imported == "set()"
    heavy = "print([name for name in sys.modules if name.startswith(('grpc', 'google.', 'rich'))], end=''); "
    complete = (
        f"import sys, os; os.environ |= {{'COMP_WORDS': 'tenure ', 'COMP_CWORD': '1'}}\n"
        "from tenure.cli.main import cli\nfrom click.shell_completion import BashComplete\n"
        "names = BashComplete(cli, {}, 'tenure', '_X').complete()\n"
        f"assert 'plain,list' in names; {heavy}"
    )
    assert python(complete) == "[]"


def test_a_list_of_tasks_imports_no_other_command() -> None:
    """People run it all the time: each of these takes a part of its start."""
    unused = {
        *("tenure.cli.tasks", "tenure.cli.entry_lines", "tenure.domain.entries", "tenure.domain.schedules"),
        *(
            "tenure.sdk.events",
            "tenure.sdk.task_info",
            "tenure.wire.codec",
            "tenure.wire.task",
            "tenure.v1.audit_service_pb2",
        ),
        *(
            "tenure.v1.webhook_service_pb2",
            "tenure.v1.schedule_service_pb2",
            "tenure.v1.agent_service_pb2",
            "rich.markdown",
        ),
    }
    assert python(f"import sys, tenure.cli.main, tenure.cli.task_list; print({unused} & set(sys.modules))") == "set()"


def test_a_worker_imports_no_provider_until_it_calls_one() -> None:
    """They take longer than the rest of its start, and a worker with a model runner does not need them."""
    providers = "{'anthropic', 'openai'}"
    assert python(f"import sys, services.worker.main; print({providers} & set(sys.modules))") == "set()"


def test_every_error_is_a_tenure_error() -> None:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, Exception)]
    own = [kind for kind in kinds if kind.__module__ in {errors.__name__, "tenure.domain.errors"}]
    assert len(own) > 15
    assert all(issubclass(kind, tenure.TenureError) for kind in own)


@pytest.mark.parametrize(
    ("given", "dialled"),
    [
        ("localhost:7070", "localhost:7070"),
        ("gateway", "gateway:8470"),
        ("[::1]", "[::1]:8470"),
        ("[::1]:7", "[::1]:7"),
        ("10.0.0.1:1,10.0.0.2", "10.0.0.1:1,10.0.0.2:8470"),
    ],
)
def test_an_address_gets_the_default_port(given: str, dialled: str) -> None:
    assert GatewayConnection(given, None, None, None).address == dialled


ENDS_WHILE_A_STREAM_IS_OPEN = """
from tenure.sdk.loop_thread import LoopCalls

async def numbers():
    number = 0
    while True:
        yield number
        number += 1

calls = LoopCalls()
stream = calls.iterate(numbers)
print(next(stream), next(stream))
"""


def test_a_script_ends_though_a_stream_is_still_open() -> None:
    run = subprocess.run(
        [sys.executable, "-c", ENDS_WHILE_A_STREAM_IS_OPEN], capture_output=True, text=True, check=True, timeout=60
    )
    assert (run.stdout, run.stderr) == ("0 1\n", "")


IGNORES_THREADS = "ignore:This process:DeprecationWarning"  # of a fork, since Python 3.12: it is what the test does
FORKS_BEFORE_AND_AFTER_A_CHANNEL = """
import os
import sys
from tenure import SyncClient, UsedBeforeFork
from tenure.runtime.rpc.client import open_channel
from tenure.sdk.loop_thread import LoopCalls

async def one():
    return 1

async def opened():
    return open_channel("127.0.0.1:1")

calls = LoopCalls()
calls.run(one)
if os.fork() == 0:
    print("before:", calls.run(one), flush=True)
    sys.exit()
os.wait()
channel = calls.run(opened)
if os.fork() == 0:
    for call in (lambda: calls.run(one), SyncClient("127.0.0.1:1").tasks_page):
        try:
            call()
        except UsedBeforeFork as error:
            print(error, flush=True)
    SyncClient().close()
    sys.exit()
os.wait()
print("parent:", calls.run(one))
"""


def test_a_child_of_a_process_with_a_channel_is_refused() -> None:
    run = subprocess.run(
        [sys.executable, "-W", IGNORES_THREADS, "-c", FORKS_BEFORE_AND_AFTER_A_CHANNEL],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    before, *refusals, parent = run.stdout.splitlines()
    assert (before, parent, run.stderr) == ("before: 1", "parent: 1", "")
    assert ["the first call after the fork" in refusal for refusal in refusals] == [True, True]


def test_a_stream_is_closed_after_its_cancelled_step_has_ended() -> None:
    """The cancelled step takes a moment to end; a generator that still runs cannot be closed."""
    calls, states = LoopCalls(), []

    async def no_connection() -> None:
        pass

    async def stream() -> AsyncGenerator[int]:
        try:
            states.append("waits")
            await asyncio.Event().wait()
            yield 1
        except asyncio.CancelledError:
            await asyncio.sleep(0.05)
            states.append("ended")
            raise

    def end_when_it_waits() -> None:
        while "waits" not in states or not calls._running:
            threading.Event().wait(0.001)
        calls.end(no_connection)

    ending = threading.Thread(target=end_when_it_waits)
    ending.start()
    with pytest.raises(Unavailable):
        next(calls.iterate(stream))
    ending.join()
    assert states == ["waits", "ended"]


def test_hints_name_what_exists() -> None:
    hints = " ".join([*errors._HINTS_BY_REASON.values(), *errors._HINTS.values(), *errors._ENDING_HINTS.values()])
    owners = {"task": Task, "client": Client, "wait": TaskWait}
    named = re.findall(r"\b(task|client|wait)\.(\w+)", hints)
    assert ("task", "current_wait") in named
    missing = [name for owner, name in named if name not in {*dir(owners[owner]), *owners[owner].__annotations__}]
    assert missing == []
