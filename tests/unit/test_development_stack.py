"""The small parts of the embedded stack: its folder, its ports, its words."""

from __future__ import annotations

import asyncio
import ctypes
import fcntl
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import click
import pytest

from devstack import (
    FolderBusy,
    ServiceDied,
    Stack,
    StackError,
    StackOptions,
)
from devstack.child_process import last_output, open_log, warnings_of
from devstack.data_dir import delete_stack, forget_addresses, hold_folder, write_addresses
from devstack.etcd import EtcdProcess
from devstack.options import (
    FREE_PORTS,
    REPLICATED,
    UIDS_APART,
    USUAL_PORTS,
    Layout,
    StackAddresses,
    choose_address,
    environment_of,
)
from devstack.service_process import SimulatorProcess
from devstack.stores import endpoint_version
from tenure.cli.dev import one_dsn, passed_on
from tenure.cli.dev_programs import LOOK_SECONDS, CodeFiles
from tenure.cli.dev_screen import UNSAFE_ETCD, command_name, command_prefix
from tenure.cli.parameters import REPLICAS, SETTING
from tenure.runtime.running_stack import LOCK_FILE_NAME, read_addresses
from tests.support.patience import PATIENCE_SECONDS


def test_a_folder_has_one_stack(tmp_path: Path) -> None:
    with hold_folder(tmp_path):
        write_addresses(tmp_path, {"gateway": "127.0.0.1:8470"})
        with pytest.raises(FolderBusy, match=r"127\.0\.0\.1:8470"), hold_folder(tmp_path):
            pass
    with hold_folder(tmp_path):
        pass


def test_a_reset_deletes_only_what_a_stack_made(tmp_path: Path) -> None:
    layout = Layout(tmp_path / "data")
    layout.create()
    with hold_folder(layout.data_dir):
        layout.prepare()
        with pytest.raises(FolderBusy):
            delete_stack(layout.data_dir)
    (layout.data_dir / "notes.txt").write_text("mine")
    assert delete_stack(layout.data_dir) == ["notes.txt"]
    assert [path.name for path in layout.data_dir.iterdir()] == ["notes.txt"]
    with pytest.raises(StackError, match="is not the data folder of a stack"):
        delete_stack(layout.data_dir)
    layout.prepare()
    with hold_folder(layout.data_dir):
        (layout.data_dir / "notes.txt").unlink()
    assert delete_stack(layout.data_dir) == []
    assert not layout.data_dir.exists()


def as_an_ordinary_user(folder: Path, work: Callable[[], list[str]]) -> list[str]:
    """The result of `work` without the rights of root, if the suite runs as root: in a thread of its own."""
    user_id = os.geteuid()
    if user_id == 0:
        user_id = 200_000
        for path in (folder, *folder.rglob("*")):
            os.chown(path, user_id, user_id, follow_symlinks=False)

    def without_rights() -> list[str]:
        if os.geteuid() == 0:
            ctypes.CDLL(None).setfsuid(user_id)  # of this thread alone
        with patch("os.geteuid", return_value=user_id):
            return work()

    with ThreadPoolExecutor(1) as executor:
        return executor.submit(without_rights).result()


def test_a_reset_deletes_directories_that_programs_closed() -> None:
    """It failed for good, after etcd and Postgres were deleted."""
    with TemporaryDirectory(dir="/tmp") as place:  # where an ordinary user may go
        Path(place).chmod(0o755)
        layout = Layout(Path(place, "data"))
        layout.create()
        with hold_folder(layout.data_dir):
            layout.prepare()
        for name, rights in (("read-only", 0o555), ("closed", 0o000), ("unsearchable", 0o400)):
            folder = layout.workspaces / name / "a" / "b"
            folder.mkdir(parents=True)
            (folder / "file").touch()
            Path(place, "elsewhere").touch(mode=0o444)
            (folder / "link").symlink_to(Path(place))
            for each in (folder, folder.parent):
                each.chmod(rights)
        assert as_an_ordinary_user(Path(place), lambda: delete_stack(layout.data_dir)) == []
        assert [path.name for path in Path(place).iterdir()] == ["elsewhere"]
        assert (Path(place).stat().st_mode & 0o777, Path(place, "elsewhere").stat().st_mode & 0o777) == (0o755, 0o444)


async def test_a_change_of_code_is_seen_but_not_of_packages(tmp_path: Path) -> None:
    """Nor is what agents write into the data directory of a stack."""
    for folder in (".venv/lib", "env/lib", "node_modules", "shop", "data/workspaces"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "env" / "pyvenv.cfg").touch()
    (tmp_path / "data" / LOCK_FILE_NAME).touch()
    code = tmp_path / "shop" / "agent.py"
    code.write_text("1")
    files = CodeFiles(tmp_path)
    for other in (".venv/lib/x.py", "env/lib/x.py", "node_modules/x.py", "shop/bank.txt", "data/workspaces/x.py"):
        (tmp_path / other).write_text("2")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(files.next_change(), LOOK_SECONDS * 1.5)
    code.unlink()
    assert await files.next_change() == str(code)
    code.write_text("SECOND = 2")
    assert await files.next_change() == str(code)


def test_only_the_owner_reads_the_files_of_a_stack(tmp_path: Path) -> None:
    layout = Layout(tmp_path / "data")
    layout.create()
    layout.logs.mkdir(mode=0o755)
    layout.prepare()
    open_log(layout.logs / "gateway.log").close()
    write_addresses(layout.data_dir, {})
    assert layout.data_dir.stat().st_mode & 0o066 == 0
    assert all(path.stat().st_mode & 0o077 == 0 for path in layout.data_dir.glob("*"))
    assert (layout.logs / "gateway.log").stat().st_mode & 0o777 == 0o600


def test_a_stack_that_was_killed_holds_its_folder_no_longer(tmp_path: Path) -> None:
    source = (
        "import sys, pathlib; from devstack.data_dir import hold_folder\n"
        "with hold_folder(pathlib.Path(sys.argv[1])): print('held', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", source, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(FolderBusy), hold_folder(tmp_path):
            pass
        holder.kill()
    with hold_folder(tmp_path):
        pass


def test_addresses_count_while_the_folder_is_held(tmp_path: Path) -> None:
    assert read_addresses(tmp_path) is None
    with hold_folder(tmp_path):
        write_addresses(tmp_path, {"gateway": "127.0.0.1:1"})
        assert read_addresses(tmp_path) == {"gateway": "127.0.0.1:1"}
        forget_addresses(tmp_path)
        assert read_addresses(tmp_path) is None
        write_addresses(tmp_path, {"gateway": "127.0.0.1:1"})
    assert read_addresses(tmp_path) is None


@pytest.mark.parametrize("content", ['{"gateway": ', "[]"])
def test_damaged_addresses_are_ignored(tmp_path: Path, content: str) -> None:
    with hold_folder(tmp_path):
        (tmp_path / "dev.json").write_text(content)
        assert read_addresses(tmp_path) is None


def test_used_default_port_is_not_taken() -> None:
    with socket.socket() as owner:
        owner.bind(("127.0.0.1", 0))
        owner.listen()
        port = owner.getsockname()[1]
        USUAL_PORTS["test"] = port
        try:
            assert choose_address("test", usual=True) != f"127.0.0.1:{port}"
        finally:
            del USUAL_PORTS["test"]


def test_a_look_at_a_folder_keeps_no_stack_from_it(tmp_path: Path) -> None:
    """A command that looks whether a stack runs shares the lock for a moment."""
    (tmp_path / LOCK_FILE_NAME).touch()
    looking = (tmp_path / LOCK_FILE_NAME).open("rb")
    fcntl.flock(looking, fcntl.LOCK_SH)
    with ThreadPoolExecutor(1) as threads:
        starting = threads.submit(hold_folder(tmp_path).__enter__)
        with pytest.raises(TimeoutError):
            starting.result(timeout=0.05)
        looking.close()
        starting.result(timeout=PATIENCE_SECONDS)


def test_free_ports_are_not_those_of_outgoing_connections() -> None:
    chosen = {choose_address("gateway", usual=False) for _ in range(20)}
    assert all(int(address.rpartition(":")[2]) in FREE_PORTS for address in chosen)
    assert FREE_PORTS.stop <= 32_768


def test_an_address_that_was_chosen_already_is_avoided() -> None:
    first = choose_address("gateway", usual=True)
    assert choose_address("gateway", usual=True, avoid={first}) != first


def test_stacks_that_start_at_once_choose_different_addresses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of them chooses seconds before anything listens on what the other chose."""
    port = int(choose_address("gateway", usual=False).rpartition(":")[2])
    monkeypatch.setitem(USUAL_PORTS, "gateway", port)
    stacks = [Stack(StackOptions(data_dir=tmp_path / name, usual_ports=True)) for name in ("one", "other")]
    first, second = (stack.choose_address_of("gateway") for stack in stacks)
    assert first == f"127.0.0.1:{port}"
    assert second != first
    assert choose_address("gateway", usual=True) not in {first, second}
    for stack in stacks:
        stack.held_addresses.close()
    assert choose_address("gateway", usual=True) == first


def test_a_folder_keeps_its_ports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    port = int(choose_address("gateway", usual=False).rpartition(":")[2])
    monkeypatch.setitem(USUAL_PORTS, "gateway", port)
    stacks = [Stack(StackOptions(data_dir=tmp_path, usual_ports=True)) for _ in range(3)]
    with socket.socket() as another:
        another.bind(("127.0.0.1", port))
        another.listen()
        first = stacks[0].choose_address_of("gateway")
        stacks[0].remember_ports()
        stacks[0].held_addresses.close()
    assert (stacks[0].taken_port, first == f"127.0.0.1:{port}") == (port, False)
    assert (stacks[1].choose_address_of("gateway"), stacks[1].taken_port) == (first, 0)
    assert stacks[2].choose_address_of("gateway") == f"127.0.0.1:{port}", "another stack holds the folder's port"
    assert stacks[2].taken_port == int(first.rpartition(":")[2])
    for stack in stacks:
        stack.held_addresses.close()


def test_a_port_that_is_named_is_the_gateways(tmp_path: Path) -> None:
    free = int(choose_address("gateway", usual=False).rpartition(":")[2])
    first, second = (Stack(StackOptions(data_dir=tmp_path, usual_ports=True, port=free)) for _ in range(2))
    assert first.choose_address_of("gateway") == f"127.0.0.1:{free}"
    with pytest.raises(StackError, match=f"port {free} is taken by another process: choose another --port"):
        second.choose_address_of("gateway")
    assert second.choose_address_of("worker-7")
    for stack in (first, second):
        stack.held_addresses.close()


def test_last_warning_and_error_are_reported() -> None:
    lines = [
        json.dumps({"level": "INFO", "message": "listening"}),
        json.dumps({"level": "ERROR", "message": "the process failed", "stack": "Traceback\n  File\nOSError: no room"}),
        json.dumps({"level": "INFO", "message": "stopping"}),
    ]
    assert last_output("\n".join(lines)) == "the process failed: OSError: no room"


def test_last_plain_lines_are_reported() -> None:
    assert last_output("invalid configuration:\n  - TENURE_X is missing\n\n") == "TENURE_X is missing"
    assert last_output("") == ""
    assert len(last_output("x" * 5000)) == 300


def test_warnings_of_one_logger_are_selected() -> None:
    lines = [
        json.dumps({"level": "WARNING", "logger": "services.tools.main", "message": "no sandbox"}),
        json.dumps({"level": "INFO", "logger": "services.tools.main", "message": "listening"}),
        json.dumps({"level": "WARNING", "logger": "another", "message": "something else"}),
        "not JSON",
        "[]",
    ]
    assert warnings_of("\n".join(lines), "services.tools.main") == ["no sandbox"]


def test_only_named_variables_reach_the_services() -> None:
    passed = passed_on({"PATH": "/bin", "ANTHROPIC_API_KEY": "secret", "OTEL_SERVICE_NAME": "x", "NO_PROXY": "corp"})
    assert passed == {"PATH": "/bin", "OTEL_SERVICE_NAME": "x", "NO_PROXY": "corp,127.0.0.1,localhost"}


@pytest.mark.parametrize(("release", "unsafe"), [("3.5.0", True), ("3.5.2", True), ("3.5.3", False), ("3.5.16", False)])
def test_releases_that_can_corrupt_data_are_known(release: str, unsafe: bool) -> None:
    assert bool(UNSAFE_ETCD.match(release)) is unsafe


async def test_program_that_is_not_etcd_is_refused() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        endpoint = f"127.0.0.1:{closed.getsockname()[1]}"
        with pytest.raises(StackError, match=endpoint):
            await endpoint_version(endpoint)


@pytest.mark.server
async def test_version_of_an_own_etcd_is_checked(etcd_process: EtcdProcess) -> None:
    assert await endpoint_version(etcd_process.endpoint) == etcd_process.version


def test_the_advice_names_the_command_as_it_can_be_typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = tmp_path / ".venv" / "bin" / "tenure"
    own.parent.mkdir(parents=True)
    own.touch(mode=0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "/nowhere")
    assert command_name(".venv/bin/tenure") == ".venv/bin/tenure"
    monkeypatch.setenv("PATH", str(own.parent))
    assert command_name(str(own)) == "tenure"
    assert command_name("/usr/lib/python3/tenure/cli/__main__.py") == "tenure"


def test_a_command_names_a_folder_as_a_shell_reads_it(tmp_path: Path) -> None:
    stack = Stack(StackOptions(data_dir=tmp_path / "my data"))
    assert command_prefix(stack).endswith(f" --data '{tmp_path}/my data'")


def test_replicas_are_named_after_their_service(tmp_path: Path) -> None:
    options = StackOptions(data_dir=tmp_path, workers=2, replicas={"tools": 3})
    assert options.names_of("tools") == ["tools", "tools-2", "tools-3"]
    assert options.names_of("gateway") == ["gateway"]
    assert options.names_of("worker") == ["worker-1", "worker-2"]


@pytest.mark.parametrize("unfit", [{"tools": 0}, {"worker": 2}, {"etcd": 3}])
def test_only_services_have_replicas_and_at_least_one(tmp_path: Path, unfit: Any) -> None:
    with pytest.raises(ValueError, match="replicas"):
        StackOptions(data_dir=tmp_path, replicas=unfit)


def test_tool_replicas_on_a_host_have_own_sandbox_uids(tmp_path: Path) -> None:
    options = StackOptions(data_dir=tmp_path, replicas={"tools": 3})
    uids = [
        int(
            environment_of("tools", name, "", options, Layout(tmp_path), StackAddresses())[
                "TENURE_TOOLS_SANDBOX_FIRST_UID"
            ]
        )
        for name in options.names_of("tools")
    ]
    assert all(later - earlier >= UIDS_APART for earlier, later in pairwise(uids))


def test_the_number_of_replicas_is_typed_for_all_or_by_service() -> None:
    assert REPLICAS.convert("2", None, None) == dict.fromkeys(REPLICATED, 2)
    assert REPLICAS.convert("coordinator=2, tools=3", None, None) == {"coordinator": 2, "tools": 3}
    for text in ("0", "tools", "tools=x", "worker=2", ""):
        with pytest.raises(click.BadParameter, match="coordinator=2"):
            REPLICAS.convert(text, None, None)


def test_a_setting_is_typed_with_or_without_its_prefix() -> None:
    expected = "checkpoint", "TENURE_CHECKPOINT_SWEEP_INTERVAL_SECONDS", "5"
    assert SETTING.convert("checkpoint.SWEEP_INTERVAL_SECONDS=5", None, None) == expected
    assert SETTING.convert("checkpoint.TENURE_CHECKPOINT_SWEEP_INTERVAL_SECONDS=5", None, None) == expected
    assert SETTING.convert("worker-2.model=a=b", None, None) == ("worker-2", "TENURE_WORKER_MODEL", "a=b")
    for text in ("SLOTS=4", "nobody.SLOTS=4", "worker.SLOTS", "worker.=4", ""):
        with pytest.raises(click.BadParameter, match=r"worker\.SLOTS=4"):
            SETTING.convert(text, None, None)
    for setting in ("gateway.LISTEN", "worker.COORDINATOR_ADDRESS", "gateway.TOOLS_ADDRESS"):
        with pytest.raises(click.BadParameter, match=r"TENURE_[A-Z_]+"):
            SETTING.convert(f"{setting}=0.0.0.0:1", None, None)
    sender = SETTING.convert("checkpoint.SMTP_FROM_ADDRESS=a@b.example", None, None)
    assert sender == ("checkpoint", "TENURE_CHECKPOINT_SMTP_FROM_ADDRESS", "a@b.example")


@pytest.mark.parametrize(
    ("expected", "model"),
    [
        ({}, "claude-opus-4-8"),
        ({"model": "sim-hello"}, "sim-hello"),
        ({"scenario_files": (Path("mine.yaml"),)}, "sim-mine"),
        ({"anthropic_api_key": "key", "model": "claude-sonnet-5"}, "claude-sonnet-5"),
    ],
)
def test_the_ledger_and_the_workers_have_one_default_model(tmp_path: Path, expected: Any, model: str) -> None:
    options = StackOptions(data_dir=tmp_path, **expected)
    ledger = environment_of("checkpoint", "checkpoint", "", options, Layout(tmp_path), StackAddresses())
    worker = environment_of("worker", "worker-1", "", options, Layout(tmp_path), StackAddresses())
    assert ledger["TENURE_CHECKPOINT_DEFAULT_MODEL"] == worker["TENURE_WORKER_MODEL"] == model


@pytest.mark.parametrize(
    ("given", "vendors", "has_provider"),
    [
        ({}, (), True),
        ({"anthropic_api_key": "key"}, ("anthropic",), True),
        ({"openai_base_url": "http://127.0.0.1:11434/v1"}, ("openai",), False),
        ({"openai_base_url": "http://127.0.0.1:11434/v1", "model": "openai/llama3"}, ("openai",), True),
        ({"openai_api_key": "key", "anthropic_base_url": "http://127.0.0.1:1"}, ("anthropic", "openai"), True),
    ],
)
def test_no_prompt_goes_to_a_vendor_that_was_not_given(
    tmp_path: Path, given: Any, vendors: tuple[str, ...], has_provider: bool
) -> None:
    options = StackOptions(data_dir=tmp_path, model_runner=True, **given)
    assert (options.real_vendors, options.default_model_has_provider) == (vendors, has_provider)
    addresses = StackAddresses(model_url=options.anthropic_base_url)
    for kind in ("worker", "models"):
        variables = environment_of(kind, kind, "", options, Layout(tmp_path), addresses)
        named = {name.partition("_")[0].lower() for name in variables if name.startswith(("ANTHROPIC_", "OPENAI_"))}
        assert named <= set(vendors)


class Latecomer(SimulatorProcess):
    """Takes its address only when the test has looked whether it serves."""

    def __init__(self, folder: Path, address: str) -> None:
        super().__init__(Layout(folder), address, StackOptions(data_dir=folder))
        self.gate = folder / "gate"
        source = (
            "import socket, sys, time, pathlib\n"
            "while not pathlib.Path(sys.argv[1]).exists(): time.sleep(0.01)\n"
            "with socket.create_server(('127.0.0.1', int(sys.argv[2]))): time.sleep(600)"
        )
        self.command = [sys.executable, "-c", source, str(self.gate), address.rpartition(":")[2]]
        self.log_path = folder / "log"

    async def serves(self) -> bool:
        does_serve = await super().serves()
        self.gate.touch()
        return does_serve


async def test_service_of_another_stack_is_not_ours(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        child = Latecomer(tmp_path, f"127.0.0.1:{other.getsockname()[1]}")
        child.start()
        try:
            with pytest.raises(ServiceDied, match="Address already in use"):
                await child.wait_ready()
        finally:
            child.kill()
    child.start()
    try:
        await child.wait_ready()
    finally:
        child.kill()


@pytest.mark.parametrize(
    ("dsn", "warns"),
    [
        ("postgresql://user:secret@localhost/x", True),
        ("host=localhost password=secret", True),
        ("postgresql://user@localhost/password", False),
        ("nonsense", False),
        ("", False),
    ],
)
def test_a_password_in_the_arguments_gets_a_warning(
    capsys: pytest.CaptureFixture[str], dsn: str, warns: bool, tmp_path: Path
) -> None:
    assert one_dsn(dsn, None) == dsn
    assert ("--postgres-file" in capsys.readouterr().err) == warns
    file = tmp_path / "dsn"
    file.write_text("postgresql://user:secret@localhost/x\n")
    assert one_dsn("", file) == "postgresql://user:secret@localhost/x"
    assert capsys.readouterr().err == ""
