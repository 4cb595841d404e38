"""Tasks' files through the gateway: to their own tenant only, and a fork begins with a copy of them."""

from __future__ import annotations

import asyncio
import os
import time
import uuid
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import psycopg
import pytest
import pytest_asyncio

from services.checkpoint.queries import SCHEMA
from services.checkpoint.submit.prepared_ids import PreparedIds
from tenure.client import Client
from tenure.client.files import download_file, read_file
from tenure.domain.access import DEFAULT_INSTALLATION
from tenure.domain.errors import AlreadyExists, InvalidRequest, NotFound, Unavailable, WrongState
from tenure.domain.fencing import Claims
from tenure.domain.images import ANSWER_TEXT, MAX_FILES_BYTES
from tenure.domain.texts import kept_as
from tenure.runtime.store.postgres import PoolOptions, open_pool
from tenure.v1 import admin_service_pb2 as admin
from tenure.v1 import checkpoint_service_pb2 as ledger
from tenure.v1 import task_pb2, tool_service_pb2, workspace_pb2
from tenure.v1 import task_service_pb2 as api
from tenure.wire.token import sign_task_claims
from tenure.wire.tool import kept_to_wire
from tests.conformance.test_ledger_waits import waiting
from tests.support.fix_checkpoint import (
    Checkpoint,
    MakeCheckpoint,
    answer,
    kinds,
    reserve,
    until_a_session_waits_for_a_lock,
)
from tests.support.fix_gateway import NOBODYS, Serve, StubOfTenant
from tests.support.fix_tools import Grants, Outside, SharedService, StartTools, ToolClient
from tests.support.images import png
from tests.support.patience import CALL_SECONDS, PATIENCE_SECONDS
from tests.support.sweeps import first

GATEWAY_HAS_TOOLS: Final = True


@pytest_asyncio.fixture(loop_scope="module")
async def world(
    replica: Checkpoint, shared_gateway: StubOfTenant, shared_tool_service: SharedService, outside: Outside
) -> AsyncIterator[Any]:
    """A task with files, and the gateway to it, for a tenant of the test's own at the services of the module."""
    tools = ToolClient(shared_tool_service.address, outside.tenant)
    yield await World.made(replica, tools, await shared_gateway(), outside)
    await tools.close()


@pytest.fixture
async def own_world(checkpoint: MakeCheckpoint, tool_service: StartTools, gateway: Serve, outside: Outside) -> Any:
    """The same with services of the test's own, which it stops, or whose work for all tenants it counts."""
    return await World.made_of(checkpoint, tool_service, gateway, outside)


class World:
    def __init__(self, replica: Any, tools: Any, stub: Any, task_id: str, outside: Outside) -> None:
        self.replica, self.tools, self.stub, self.task_id = replica, tools, stub, task_id
        self.tenant, self.tenant_root = outside.tenant, outside.workspaces / outside.tenant

    @classmethod
    async def made(cls, replica: Any, tools: Any, stub: Any, outside: Outside) -> Any:
        world = cls(replica, tools, stub, (await replica.create()).task_id, outside)
        world.workspace(world.task_id).mkdir(parents=True)
        return world

    @classmethod
    async def made_of(cls, checkpoint: Any, tool_service: Any, gateway: Any, outside: Outside, **settings: Any) -> Any:
        replica, tools = await checkpoint(), await tool_service(**settings)
        return await cls.made(replica, tools, await gateway(replica.address, tools=tools.address), outside)

    def client(self) -> Client:
        return Client(self.stub.process.address, tenant=self.tenant)

    def workspace(self, task_id: str) -> Path:
        return self.tenant_root / task_id

    def write(self, path: str, content: bytes = b"x") -> Path:
        target = self.workspace(self.task_id) / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
        return target

    async def fork(self, request_id: str = "", **fields: Any) -> Any:
        return await self.stub.ForkTask(
            api.ForkTaskRequest(request_id=request_id or uuid.uuid4().hex, task_id=self.task_id, **fields)
        )

    def directories(self) -> set[str]:
        return {path.name for path in self.tenant_root.iterdir()}


async def test_a_tenant_lists_and_reads_its_own_tasks_files_only(world: Any) -> None:
    content = os.urandom(600_000)
    world.write("out/data.bin", content)
    async with world.client() as client:
        pages = [
            page async for page in client.pages(client.tasks.ListFiles, api.ListFilesRequest(task_id=world.task_id))
        ]
        assert [file.path for page in pages for file in page.files] == ["out", "out/data.bin"]
        assert pages[0].usage.used_bytes >= 600_000
        assert b"".join([part async for part in read_file(client.tasks, world.task_id, "out/data.bin")]) == content
        for task_id in (NOBODYS,):
            with pytest.raises(NotFound):
                _ = [page async for page in client.pages(client.tasks.ListFiles, api.ListFilesRequest(task_id=task_id))]
        with pytest.raises(InvalidRequest):
            _ = [part async for part in read_file(client.tasks, world.task_id, "../x")]
    async with Client(world.stub.process.address, tenant="somebody-else") as stranger:
        with pytest.raises(NotFound):
            _ = [
                page
                async for page in stranger.pages(stranger.tasks.ListFiles, api.ListFilesRequest(task_id=world.task_id))
            ]
        with pytest.raises(NotFound):
            _ = [part async for part in read_file(stranger.tasks, world.task_id, "out/data.bin")]


async def test_a_broken_download_resumes_and_is_complete_or_absent(own_world: Any, tmp_path: Path) -> None:
    world = own_world
    content = os.urandom(9_000_000)
    world.write("big", content)
    target = tmp_path / "here" / "big"
    target.parent.mkdir()
    async with world.client() as client:
        parts = read_file(client.tasks, world.task_id, "big")
        got = [await anext(parts)]
        killed = world.stub.process
        await killed.kill()
        await killed.start_again()
        got += [part async for part in parts]
        assert b"".join(got) == content
        assert await download_file(client.tasks, world.task_id, "big", target) == len(content)
        assert target.read_bytes() == content
        with pytest.raises(NotFound):
            await download_file(client.tasks, world.task_id, "none", target.parent / "none")
        assert [path.name for path in target.parent.iterdir()] == ["big"]


async def test_a_fork_begins_with_a_copy_of_the_files(world: Any) -> None:
    program = world.write("bin/run.py", b"print(1)")
    program.chmod(0o4755)
    os.utime(program, ns=(7, 1_600_000_000_123_456_789))
    world.write("empty", b"")
    world.write("twice", b"y" * 5000)
    (world.workspace(world.task_id) / "again").hardlink_to(world.workspace(world.task_id) / "twice")
    (world.workspace(world.task_id) / "link").symlink_to("/etc/passwd")
    (world.workspace(world.task_id) / "dangling").symlink_to("nothing")
    os.mkfifo(world.workspace(world.task_id) / "pipe")
    with (world.workspace(world.task_id) / "sparse").open("wb") as sparse:
        sparse.truncate(1 << 36)
        sparse.seek(1 << 35)
        sparse.write(b"middle")
    world.write(".tenure-1.0", b"half")
    forked = await world.fork()
    copy = world.workspace(forked.task.task_id)
    assert (forked.copied.files, forked.copied.left_out) == (8, 1)
    names = {str(path.relative_to(copy)) for path in copy.rglob("*")}
    assert names == {"bin", "bin/run.py", "empty", "twice", "again", "link", "dangling", "sparse"}
    status = (copy / "bin/run.py").stat()
    assert (status.st_mode & 0o7777, status.st_mtime_ns) == (0o755, 1_600_000_000_123_456_789)
    assert (copy / "link").readlink() == Path("/etc/passwd")
    assert (copy / "dangling").readlink() == Path("nothing")
    assert (copy / "twice").stat().st_ino == (copy / "again").stat().st_ino != program.stat().st_ino
    sparse = (copy / "sparse").stat()
    assert (sparse.st_size, sparse.st_blocks * 512 < 1 << 20) == (1 << 36, True)
    with (copy / "sparse").open("rb") as file:
        assert (file.seek(1 << 35), file.read(6)) == (1 << 35, b"middle")
    (copy / "twice").write_bytes(b"changed")
    assert (world.workspace(world.task_id) / "twice").read_bytes() == b"y" * 5000


async def test_a_repeated_fork_is_the_same_task_without_a_copy(world: Any) -> None:
    world.write("file", b"first")
    first, second = await asyncio.gather(world.fork("r-1"), world.fork("r-1"))
    assert first.task.task_id == second.task.task_id
    world.write("file", b"later")
    third = await world.fork("r-1")
    assert (third.task.task_id, third.HasField("copied")) == (first.task.task_id, False)
    assert (world.workspace(first.task.task_id) / "file").read_bytes() == b"first"
    assert world.directories() == {world.task_id, first.task.task_id}


async def test_a_fork_without_files_and_one_of_a_task_without_any(world: Any) -> None:
    world.write("file")
    bare = await world.fork(without_files=True)
    assert (bare.HasField("copied"), world.workspace(bare.task.task_id).exists()) == (False, False)
    empty = await world.stub.ForkTask(api.ForkTaskRequest(request_id="r-2", task_id=bare.task.task_id))
    assert (empty.copied.files, world.workspace(empty.task.task_id).exists()) == (0, False)


async def test_a_client_does_not_choose_the_author_or_id_of_a_fork(world: Any) -> None:
    forged, author = str(uuid.uuid4()), f"tenant/{world.tenant}"
    for number, without_files in enumerate((True, False)):
        fields = {"message": "go on", "actor": "mallory", "prepared_task_id": forged, "without_files": without_files}
        fork = await world.fork(f"r-{number}", **fields)
        assert fork.task.task_id != forged
        entries = await world.stub.ListTaskEntries(api.ListTaskEntriesRequest(task_id=fork.task.task_id))
        assert {entry.actor for entry in entries.entries} & {"mallory", author} == {author}


async def test_a_fork_whose_files_cannot_be_copied_is_refused(
    checkpoint: MakeCheckpoint, tool_service: StartTools, gateway: Serve, outside: Outside
) -> None:
    world = await World.made_of(checkpoint, tool_service, gateway, outside, workspace_bytes=100_000, workspace_files=20)
    world.write("big", b"x" * 150_000)
    with pytest.raises(WrongState) as refused:
        await world.fork()
    assert refused.value.reason == "WORKSPACE_LIMIT"
    world.write("big", b"x")
    for number in range(20):
        world.write(f"{number}")
    with pytest.raises(WrongState):
        await world.fork()
    assert world.directories() == {world.task_id}
    with pytest.raises(NotFound):
        await world.stub.ForkTask(api.ForkTaskRequest(request_id="r-3", task_id=NOBODYS))
    await world.tools.kill()
    with pytest.raises(Unavailable):
        await world.fork("r-4")
    assert len((await world.stub.ListTasks(api.ListTasksRequest())).tasks) == 1
    assert (await world.fork("r-4", without_files=True)).task.state == task_pb2.TASK_STATE_QUEUED


async def test_files_of_a_failed_fork_are_forgotten(own_world: Any) -> None:
    """The gateway died between the copy and the fork, and the client does not repeat its request."""
    world = own_world
    world.write("file")
    request = api.ForkTaskRequest(
        request_id="r-1", task_id=world.task_id, actor="tenant/default", overrides=task_pb2.ForkOverrides()
    )
    prepare = ledger.PrepareForkRequest(fork=request)
    prepared = (await world.replica.stub.PrepareFork(prepare, timeout=CALL_SECONDS)).prepared_task_id
    again = await world.replica.stub.PrepareFork(prepare, timeout=CALL_SECONDS)
    assert again.prepared_task_id == prepared
    pool_options = PoolOptions(min_size=1)
    async with open_pool(world.replica.dsn, service="test", schema=SCHEMA, options=pool_options) as pool:
        assert await PreparedIds(pool).give_up_once() == 0
        assert await PreparedIds(pool, kept_seconds=0.0).give_up_once() == 1
    assert await _offered(world) == [(prepared, 0, "")]
    request.prepared_task_id = prepared
    with pytest.raises(Unavailable) as late:
        await world.replica.stub.ForkTask(request, timeout=CALL_SECONDS)
    assert late.value.reason == "FORK_NOT_PREPARED"
    assert (await world.fork("r-1")).task.task_id != prepared


@pytest.mark.parametrize("kind", first(["fork", "submit"]))
async def test_a_repeat_answers_with_a_task_made_meanwhile(own_world: Any, kind: str) -> None:
    """The repeat has looked for the task before the task is there, and its id is used up after that."""
    replica, stub = own_world.replica, own_world.replica.stub
    request: Any = api.ForkTaskRequest(request_id="r-1", task_id=own_world.task_id, actor="tenant/default")
    create, prepare = stub.ForkTask, stub.PrepareFork
    message: Any = ledger.PrepareForkRequest(fork=request)
    if kind == "submit":
        request = ledger.CreateTaskRequest(request_id="r-1", spec=task_pb2.TaskSpec(goal="go", queue="q"))
        request.files.add(path="facts.txt", digest=kept_as(b"true").digest, size_bytes=4)
        create, prepare = stub.CreateTask, stub.PrepareTask
        message = ledger.PrepareTaskRequest(create_task=request)
    first = await prepare(message, timeout=CALL_SECONDS)
    request.prepared_task_id = first.prepared_task_id
    async with await psycopg.AsyncConnection.connect(replica.dsn) as postgres:
        await postgres.execute("select 1 from ledger.prepared_forks for update")
        made = asyncio.ensure_future(create(request, timeout=CALL_SECONDS))
        await until_a_session_waits_for_a_lock(replica)
        repeat = asyncio.ensure_future(prepare(message, timeout=CALL_SECONDS))
        await until_a_session_waits_for_a_lock(replica, sessions=2)
        await postgres.rollback()
    assert (await repeat).task.task_id == (await made).task.task_id == first.prepared_task_id
    assert await replica.query("select 1 from ledger.prepared_forks") == []


async def test_files_of_a_pruned_task_are_refused_as_pruned(world: Any) -> None:
    world.write("file")
    owner = await world.replica.claim(world.task_id)
    await owner.commit(reserve=reserve())
    await owner.commit(answer())
    await owner.end(result="ok")
    await world.stub.admin.PruneTasks(admin.PruneTasksRequest(task_id=world.task_id, reason="enough"))
    async with world.client() as client:
        with pytest.raises(NotFound) as gone:
            _ = [
                page async for page in client.pages(client.tasks.ListFiles, api.ListFilesRequest(task_id=world.task_id))
            ]
    assert gone.value.reason == "TASK_PRUNED"


async def test_a_copy_that_died_is_removed_in_time(
    checkpoint: MakeCheckpoint, tool_service: StartTools, gateway: Serve, outside: Outside
) -> None:
    world = await World.made_of(checkpoint, tool_service, gateway, outside, workspace_sweep_interval_seconds=0.1)
    old, young = world.tenant_root / f".copy-{uuid.uuid4()}-{'a' * 32}", world.tenant_root / ".copy-young"
    for copy in (old, young):
        copy.mkdir()
        (copy / "half").write_text("x")
    os.utime(old, (time.time() - 7200,) * 2)
    async with asyncio.timeout(PATIENCE_SECONDS):
        while old.exists():
            await asyncio.sleep(0.02)
    assert young.exists()


async def test_a_fork_that_never_ran_is_pruned_with_its_files(own_world: Any, grants: Grants) -> None:
    """No claim of it was ever granted: the tools forget it all the same."""
    world = own_world
    world.write("file")
    forked = (await world.fork()).task.task_id
    await world.replica.cancel(forked)
    await world.stub.admin.PruneTasks(admin.PruneTasksRequest(task_id=forked, reason="enough"))
    assert await _offered(world) == [(forked, 0, "")]
    claims = Claims(f"tasks/{forked}", "default", 0, "", "test", installation=DEFAULT_INSTALLATION)
    token = sign_task_claims(grants.signer, claims, datetime.now(UTC))
    await world.tools.stub.Forget(tool_service_pb2.ForgetRequest(token=token), timeout=CALL_SECONDS)
    async with asyncio.timeout(PATIENCE_SECONDS):
        while world.workspace(forked).exists():
            await asyncio.sleep(0.02)
    assert world.directories() == {world.task_id}


async def _offered(world: Any) -> list[tuple[str, int, str]]:
    """The prunings that a coordinator gets. A row that the clearing has locked is offered to the next request."""
    request = ledger.ListPruningsRequest(limit=10)
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not (offered := (await world.replica.stub.ListPrunings(request, timeout=CALL_SECONDS)).prunings):
            await asyncio.sleep(0.02)
    return [(one.task_id, one.epoch, one.claim_id) for one in offered]


PICTURE = png(64, 48)


async def submit_with(world: Any, request_id: str = "s-1", **files: bytes) -> Any:
    inputs = [workspace_pb2.InputFile(path=path.replace("__", "/"), content=content) for path, content in files.items()]
    request = api.SubmitTaskRequest(request_id=request_id, spec=task_pb2.TaskSpec(goal="Look."), files=inputs)
    return (await world.stub.SubmitTask(request)).task


async def test_files_of_a_submit_are_there_before_the_task(world: Any) -> None:
    task = await submit_with(world, facts=b"42", photos__a=PICTURE)
    root = world.workspace(task.task_id)
    kept = kept_as(PICTURE)
    found = {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}
    assert found == {"facts": b"42", "photos/a": PICTURE, kept.path: PICTURE}
    entries = (await world.stub.ListTaskEntries(api.ListTaskEntriesRequest(task_id=task.task_id))).entries
    facts, photo = entries[0].body.submitted.files
    assert (facts.path, facts.size_bytes, facts.HasField("image")) == ("facts", 2, False)
    assert (photo.path, photo.digest, photo.image.kept.path) == ("photos/a", kept.digest, kept.path)
    assert (photo.image.width, photo.image.height) == (64, 48)


async def test_a_repeated_submit_puts_no_file_again(world: Any) -> None:
    first, second = await asyncio.gather(submit_with(world, a=b"1"), submit_with(world, a=b"1"))
    assert first.task_id == second.task_id
    written = world.workspace(first.task_id) / "a"
    written.write_bytes(b"by the agent")
    assert (await submit_with(world, a=b"1")).task_id == first.task_id
    put = tool_service_pb2.PutFilesRequest(
        task_id=first.task_id, files=[workspace_pb2.InputFile(path="a", content=b"1")]
    )
    await world.tools.stub.PutFiles(put, timeout=CALL_SECONDS)
    assert written.read_bytes() == b"by the agent", "a late request changes nothing"
    with pytest.raises(AlreadyExists) as reused:
        await submit_with(world, a=b"2")
    assert reused.value.reason == "REQUEST_ID_REUSED"
    assert world.directories() == {world.task_id, first.task_id}


async def test_a_fork_keeps_the_files_of_the_submit(world: Any) -> None:
    task = await submit_with(world, photo=PICTURE)
    fork = await world.stub.ForkTask(api.ForkTaskRequest(request_id="r-1", task_id=task.task_id))
    entries = (await world.stub.ListTaskEntries(api.ListTaskEntriesRequest(task_id=fork.task.task_id))).entries
    assert [file.path for file in entries[0].body.submitted.files] == ["photo"]
    assert (world.workspace(fork.task.task_id) / kept_as(PICTURE).path).read_bytes() == PICTURE


@pytest.mark.parametrize("path", ["../a", "/a", "a//b", "", ".", "a/./b", "a\nb", ".tenure-a", "x/" * 9 + "y"])
async def test_a_file_outside_of_the_workspace_is_refused(world: Any, path: str) -> None:
    files = [workspace_pb2.InputFile(path="fine", content=b"1"), workspace_pb2.InputFile(path=path, content=b"1")]
    with pytest.raises(InvalidRequest) as refused:
        await world.stub.SubmitTask(api.SubmitTaskRequest(spec=task_pb2.TaskSpec(goal="Look."), files=files))
    assert {violation.field.partition(".")[0] for violation in refused.value.violations} == {"files[1]"}
    assert world.directories() == {world.task_id}


async def test_a_file_that_does_not_fit_is_refused_by_name(world: Any) -> None:
    with pytest.raises(InvalidRequest) as refused:
        await submit_with(world, a=bytes(MAX_FILES_BYTES - 1), b=b"12")
    [violation] = refused.value.violations
    assert (violation.field, violation.description) == (
        "files[1]",
        "'b' does not fit: the files of a request have 3000000 bytes at most; send others with messages",
    )
    assert (await submit_with(world, a=bytes(MAX_FILES_BYTES - 2), b=b"12")).state == task_pb2.TASK_STATE_QUEUED


@pytest.mark.faults
async def test_a_submit_beyond_the_workspace_bound_is_refused(
    checkpoint: MakeCheckpoint, tool_service: StartTools, gateway: Serve, outside: Outside
) -> None:
    world = await World.made_of(checkpoint, tool_service, gateway, outside, workspace_bytes=100_000)
    with pytest.raises(WrongState) as refused:
        await submit_with(world, a=bytes(100_001))
    assert refused.value.reason == "WORKSPACE_LIMIT"
    assert refused.value.message.endswith("have 100001 bytes; a workspace may have 100000")
    await world.tools.kill()
    with pytest.raises(Unavailable):
        await submit_with(world, a=b"1")
    assert len((await world.stub.ListTasks(api.ListTasksRequest())).tasks) == 1
    assert world.directories() == {world.task_id}


async def message_with(world: Any, request_id: str = "m-1", task_id: str = "", **files: bytes) -> Any:
    inputs = [workspace_pb2.InputFile(path=path.replace("__", "/"), content=content) for path, content in files.items()]
    request = api.SendMessageRequest(
        request_id=request_id, task_id=task_id or world.task_id, text="And these.", files=inputs
    )
    return (await world.stub.SendMessage(request)).task


async def messages_of(world: Any, task_id: str = "") -> list[Any]:
    request = api.ListTaskEntriesRequest(task_id=task_id or world.task_id)
    entries = (await world.stub.ListTaskEntries(request)).entries
    return [entry.body.user_message for entry in entries if entry.body.HasField("user_message")]


async def test_files_of_a_message_are_there_with_it(world: Any) -> None:
    world.write("facts", b"the agent's")
    await message_with(world, facts=b"42", photos__a=PICTURE)
    await message_with(world, "m-2", facts=b"43")
    first, second = await messages_of(world)
    root = world.workspace(world.task_id)
    assert [(root / file.path).read_bytes() for file in (*first.files, *second.files)] == [b"42", PICTURE, b"43"]
    assert (root / "facts").read_bytes() == b"the agent's"
    photo = first.files[1]
    assert photo.path.startswith("messages/")
    assert photo.path.endswith("/photos/a")
    assert (photo.image.kept, photo.image.width) == (kept_to_wire(kept_as(PICTURE)), 64)
    assert (root / kept_as(PICTURE).path).read_bytes() == PICTURE
    assert world.directories() == {world.task_id}


async def test_a_repeated_message_puts_no_file_again(world: Any) -> None:
    await asyncio.gather(message_with(world, a=b"1"), message_with(world, a=b"1"))
    [message] = await messages_of(world)
    written = world.workspace(world.task_id) / message.files[0].path
    written.write_bytes(b"by the agent")
    await message_with(world, a=b"1")
    assert written.read_bytes() == b"by the agent"
    with pytest.raises(AlreadyExists) as reused:
        await message_with(world, a=b"2")
    assert reused.value.reason == "REQUEST_ID_REUSED"
    assert len(list(written.parent.parent.iterdir())) == 1


async def test_files_of_a_refused_message_are_not_put(world: Any) -> None:
    await world.replica.cancel(world.task_id)
    with pytest.raises(WrongState):
        await message_with(world, a=b"1")
    with pytest.raises(NotFound):
        await message_with(world, task_id=NOBODYS, a=b"1")
    assert not list(world.workspace(world.task_id).iterdir())
    assert world.directories() == {world.task_id}


@pytest.mark.parametrize("without_files", [False, True])
async def test_files_of_the_message_of_a_fork_are_there_with_it(world: Any, *, without_files: bool) -> None:
    world.write("facts", b"the other task's")
    inputs = [workspace_pb2.InputFile(path="facts", content=b"42")]
    sent = {"message": "And these.", "files": inputs, "without_files": without_files}
    first = await world.fork("f-1", **sent)
    again = await world.fork("f-1", **sent)
    assert first.task.task_id == again.task.task_id
    root = world.workspace(first.task.task_id)
    [message] = await messages_of(world, first.task.task_id)
    assert (message.text, (root / message.files[0].path).read_bytes()) == ("And these.", b"42")
    assert (root / "facts").exists() is not without_files
    with pytest.raises(AlreadyExists):
        await world.fork("f-1", **{**sent, "files": [workspace_pb2.InputFile(path="facts", content=b"43")]})
    with pytest.raises(InvalidRequest, match="needs a message"):
        await world.fork("f-2", **{**sent, "message": ""})
    assert world.directories() == {world.task_id, first.task.task_id}


async def test_files_of_an_answer_are_a_message_with_it(world: Any) -> None:
    task = await waiting(world.replica)
    inputs = [workspace_pb2.InputFile(path="facts", content=b"42")]
    reply = api.ResumeTaskRequest(
        request_id="a-1", task_id=task.task_id, wait_id=task.wait.wait_id, decision="approve", files=inputs
    )
    await world.stub.ResumeTask(reply)
    await world.stub.ResumeTask(reply)
    [message] = await messages_of(world, task.task_id)
    root = world.workspace(task.task_id)
    assert (message.text, (root / message.files[0].path).read_bytes()) == (ANSWER_TEXT, b"42")
    late = api.ResumeTaskRequest()
    late.CopyFrom(reply)
    late.request_id = "a-2"
    with pytest.raises(WrongState) as over:
        await world.stub.ResumeTask(late)
    assert over.value.reason == "WAIT_OVER"
    assert len(list((root / "messages").iterdir())) == 1
    recorded = kinds(await world.replica.entries(task.task_id))
    assert recorded[-4:-1] == ["user_message", "wait_resolution", "tool_outcome"]


@pytest.mark.faults
async def test_files_of_a_message_that_do_not_fit_are_refused(
    checkpoint: MakeCheckpoint, tool_service: StartTools, gateway: Serve, outside: Outside
) -> None:
    world = await World.made_of(checkpoint, tool_service, gateway, outside, workspace_bytes=100_000)
    world.write("big", bytes(90_000))
    with pytest.raises(WrongState) as full:
        await message_with(world, a=bytes(20_000))
    assert full.value.reason == "WORKSPACE_LIMIT"
    world.write("messages", b"a file of the agent")
    with pytest.raises(WrongState) as hindered:
        await message_with(world, a=b"1")
    assert hindered.value.reason == "WORKSPACE_UNREADABLE"
    assert not await messages_of(world)
    assert world.directories() == {world.task_id}
