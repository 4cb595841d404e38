"""Every command against a gateway whose every text is hostile: what reaches the terminal is only text."""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import click
import grpc
import pytest
from click.testing import CliRunner
from google.protobuf import descriptor_pool
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message_factory import GetMessageClass
from rich.text import Text

from tenure.cli.exit_codes import Exit
from tenure.cli.formatting import make_table, printable
from tenure.cli.group import Group
from tenure.cli.main import cli
from tenure.cli.output import file_output, make_console
from tenure.runtime import running_stack

ID: Final = "0198aaaa-0000-7000-8000-000000000001"
HOSTILE: Final = "é\x1b]0;t\x07\x1b[2J\x9b32m\x08\r\u202e\u2066\u200f\u061c\u2028\nFORGED [red]x[/red]"
HARMFUL: Final = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
LOCAL: Final = {"dev", "demo", "serve", "mcp", "completion"}
"""Commands that ask no gateway."""
FILES: Final = {("keys",), ("keys", "certs"), ("outbox",)}
"""Groups whose commands ask no gateway either; other groups have commands of the same names."""
DEEPEST: Final = 6
KINDS: Final = FieldDescriptor


def filled(descriptor: Any, variant: int = 0, depth: int = 0) -> Any:
    """A message with a hostile text in each field that can have one. `variant`: which member of a oneof is set."""
    message: Any = GetMessageClass(descriptor)()
    if descriptor.full_name == "google.protobuf.Timestamp":
        message.GetCurrentTime()
    if descriptor.full_name.startswith("google.protobuf.") or depth > DEEPEST:
        return message
    chosen = {oneof.fields[variant % len(oneof.fields)].name for oneof in descriptor.oneofs}
    for field in descriptor.fields:
        if field.containing_oneof is None or field.name in chosen:
            fill(message, field, depth)
    return message


def fill(message: Any, field: Any, depth: int) -> None:
    name = field.name
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        value = field.message_type.fields_by_name["value"]
        if value.message_type is None:
            getattr(message, name)[HOSTILE] = scalar(value)
    elif field.message_type is not None and field.is_repeated:
        several = max([1, *(len(oneof.fields) for oneof in field.message_type.oneofs)])
        getattr(message, name).extend(filled(field.message_type, one, depth + 1) for one in range(several))
    elif field.message_type is not None:
        getattr(message, name).CopyFrom(filled(field.message_type, 0, depth + 1))
    elif field.is_repeated:
        getattr(message, name).append(scalar(field))
    else:
        setattr(message, name, scalar(field))


def scalar(field: Any) -> Any:
    if field.type == KINDS.TYPE_STRING:
        if field.name in {"next_page_token", "page_token"}:
            return ""  # or there is always one more page
        return json.dumps({HOSTILE: HOSTILE}) if field.name.endswith("_json") else HOSTILE
    if field.type == KINDS.TYPE_BYTES:
        return HOSTILE.encode()
    if field.type == KINDS.TYPE_ENUM:
        return field.enum_type.values[-1].number
    return field.type == KINDS.TYPE_BOOL or 1


class Hostile(grpc.GenericRpcHandler):
    """Serves every method once, with each variant of a stream's messages. The next calls of a method get an empty page,
    or the end of the stream; with `refuses` each call gets a hostile error.
    """

    def __init__(self) -> None:
        self.address = ""
        self.refuses = False
        self.called: set[str] = set()

    def begin(self, *, refuses: bool) -> None:
        self.refuses = refuses
        self.called.clear()

    def service(self, details: Any) -> Any:
        service, _, name = details.method.lstrip("/").partition("/")
        method = descriptor_pool.Default().FindServiceByName(service).methods_by_name[name]

        def once(_request: bytes, context: Any) -> bytes:
            is_repeated = self._is_repeated(name, context)
            return b"" if is_repeated else bytes(filled(method.output_type).SerializeToString())

        def several(_request: bytes, context: Any) -> Iterator[bytes]:
            if self._is_repeated(name, context):
                context.abort(grpc.StatusCode.FAILED_PRECONDITION, HOSTILE)
            variants = max([1, *(len(oneof.fields) for oneof in method.output_type.oneofs)])
            yield from (filled(method.output_type, one).SerializeToString() for one in range(variants))

        if method.server_streaming:
            return grpc.unary_stream_rpc_method_handler(several)
        return grpc.unary_unary_rpc_method_handler(once)

    def _is_repeated(self, method: str, context: Any) -> bool:
        if self.refuses:
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, HOSTILE)
        is_repeated = method in self.called
        self.called.add(method)
        return is_repeated


@pytest.fixture(scope="module")
def gateway() -> Iterator[Hostile]:
    hostile = Hostile()
    server = grpc.server(ThreadPoolExecutor(4), handlers=[hostile])
    hostile.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    yield hostile
    server.stop(None)


VERBATIM: Final = {("files", "cat"), ("tools", "receipts")}
"""Commands that print bytes as they are, unless a terminal shows them: `test_a_file_is_escaped_on_a_terminal_only`."""


def commands(group: Any = cli, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))
        elif not {name, *path} & LOCAL and path not in FILES and (*path, name) not in VERBATIM:
            yield (*path, name), command


MORE: Final[dict[str, tuple[str, ...]]] = {
    "submit": ("goal", "--watch"),
    "tasks wait": ("--timeout", "2s"),
}
"""Arguments of commands that need more than their required parameters."""


def arguments_of(command: click.Command) -> Iterator[str]:
    for parameter in command.params:
        if not parameter.required:
            continue
        value = parameter.type.choices[0] if isinstance(parameter.type, click.Choice) else ID
        value = {"payload": "{}", "until": "1h", "cron": "* * * * *"}.get(parameter.name or "", value)
        yield from [value] if isinstance(parameter, click.Argument) else [parameter.opts[0], value]


CASES: Final = [pytest.param(path, command, id=" ".join(path)) for path, command in commands()]


@pytest.mark.parametrize("mode", ["plain", "json", "verbose", "refused"])
@pytest.mark.parametrize(("path", "command"), CASES)
def test_no_command_prints_control_characters(
    gateway: Hostile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: tuple[str, ...], command: Any, mode: str
) -> None:
    if path == ("tools", "receipt") and mode == "json":
        pytest.skip("the bytes of a receipt are signed: they are printed as those of a file")
    monkeypatch.chdir(tmp_path)
    gateway.begin(refuses=mode == "refused")
    options = {"json": ["--json"], "verbose": ["--verbose"]}.get(mode, [])
    arguments = [*path, *arguments_of(command), *MORE.get(" ".join(path), ())]
    result = CliRunner().invoke(cli, ["--address", gateway.address, *options, *arguments])
    shown = result.stdout + result.stderr
    assert isinstance(result.exception, SystemExit | ValueError | None)  # ValueError: of ids that no gateway sends
    assert shown or isinstance(result.exception, ValueError)
    assert HARMFUL.findall(shown) == []
    if mode == "refused":  # an error is one message, and each of its lines shows it
        assert [line for line in shown.splitlines() if line.startswith("FORGED")] == []


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_a_guessed_gateway_prints_no_control_character(
    gateway: Hostile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str]
) -> None:
    """Whatever listens at the usual address names the folder of its stack."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(running_stack, "DEFAULT_ADDRESS", gateway.address)
    gateway.begin(refuses=False)
    result = CliRunner().invoke(cli, [*options, "list"])
    assert (result.exit_code, gateway.called) == (Exit.USAGE, {"GetCaller"})
    assert HARMFUL.findall(result.stderr) == []
    assert f"--data {shlex.quote(printable(HOSTILE))}" in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_an_error_of_a_command_is_one_message() -> None:
    """Also one that click prints itself, as the log of the worker of a replay."""

    @click.command
    def fails() -> None:
        raise click.ClickException(HOSTILE)

    group = Group("tenure")
    group.add_command(fails)
    shown = CliRunner().invoke(group, ["fails"]).stderr
    assert HARMFUL.findall(shown) == []
    assert [line for line in shown.splitlines() if line.startswith("FORGED")] == []


def test_a_table_has_one_line_for_each_record(capsys: pytest.CaptureFixture[str]) -> None:
    table = make_table("NAME", "OWNER")
    table.add_row(HOSTILE, Text(HOSTILE, "red"))
    console = make_console()
    console.width = 400
    console.print(table)
    header, *records = capsys.readouterr().out.splitlines()
    assert header.split() == ["NAME", "OWNER"]
    assert len(records) == 1


def test_a_table_changes_no_value(capsys: pytest.CaptureFixture[str]) -> None:
    """rich made an emoji of `:key:`."""
    table = make_table("MEMBER")
    table.add_row("oidc:key:7 [red]x[/red]")
    make_console().print(table)
    assert capsys.readouterr().out.splitlines()[1].strip() == "oidc:key:7 [red]x[/red]"


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_file_is_escaped_on_a_terminal_only(
    monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes], is_terminal: bool
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: is_terminal)
    write, flush = file_output()
    content = f"{HOSTILE}\xff".encode()
    for part in (content[:1], content[1:]):  # the first character is in both
        write(part)
    flush()
    out = capsysbinary.readouterr().out
    assert (HARMFUL.search(out.decode()) is None) == is_terminal
    assert out.decode().startswith("é")
    assert is_terminal or out == content
