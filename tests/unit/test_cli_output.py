"""Laws of what the command prints: no text of others acts on a terminal."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path

import pytest
from rich.table import Table
from rich.text import Text

import tenure.cli
from tenure.cli.formatting import cut_text, make_grid, make_list, make_table
from tenure.cli.output import SafeConsole, echo, json_line
from tenure.cli.streams import replace_unknown_characters

HOSTILE = "a\x1b]0;owned\x07b\x9b2Jc\x7f\u202ed\u2066e\rf\x00"
ACTS_ON_A_TERMINAL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
PLACES_THAT_PRINT = {"output.py"}


def table() -> Table:
    made = make_table("TASK", HOSTILE)
    made.add_row(HOSTILE, Text(HOSTILE, style="red"))
    return made


def grid() -> Table:
    return make_grid([(HOSTILE, HOSTILE)])


@pytest.mark.parametrize("shown", [HOSTILE, Text(HOSTILE), table(), grid()], ids=["str", "Text", "table", "grid"])
def test_console_escapes_control_characters(shown: str | Text | Table) -> None:
    written = io.StringIO()
    SafeConsole(file=written, markup=False, highlight=False, width=400).print(shown)
    assert "owned" in written.getvalue()
    assert not ACTS_ON_A_TERMINAL.search(written.getvalue())


def test_the_console_keeps_its_own_colours() -> None:
    written = io.StringIO()
    SafeConsole(file=written, force_terminal=True, color_system="standard").print(Text("x", style="red"))
    assert written.getvalue() == "\x1b[31mx\x1b[0m\n"


def test_only_the_last_column_of_a_list_is_cut() -> None:
    written = io.StringIO()
    table = make_list("TASK", "STATE", "GOAL")
    table.add_row("0" * 36, "QUEUED, starts in 2 h", cut_text("long " * 60, 120))
    SafeConsole(file=written, width=80).print(table)
    assert written.getvalue().splitlines()[1:] == [f"{'0' * 36}  QUEUED, starts in 2 h  long long long lon…"]


def test_line_escapes_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    echo(HOSTILE)
    echo(HOSTILE, err=True)
    for printed in capsys.readouterr():
        assert "owned" in printed
        assert not ACTS_ON_A_TERMINAL.search(printed)


def test_json_is_the_same_value_without_control_characters() -> None:
    line = json_line({HOSTILE: [HOSTILE], "plain": "grün"})
    assert not ACTS_ON_A_TERMINAL.search(line)
    assert json.loads(line) == {HOSTILE: [HOSTILE], "plain": "grün"}
    assert "grün" in line


def test_every_command_prints_through_one_module() -> None:
    """Besides the demo, which prints only its own words, and binary output, which is the file asked for."""
    package = Path(tenure.cli.__file__).parent
    bypass = re.compile(r"click\.(echo|secho)\(|\bprint\((?!.*file=)|\bConsole\((?!quiet=True)")
    lines = [
        f"{path.name}:{number}"
        for path in sorted(package.glob("*.py"))
        if path.name not in PLACES_THAT_PRINT
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if bypass.search(line) and "console.print(" not in line
    ]
    assert lines == []


@pytest.mark.parametrize("encoding", ["latin-1", "koi8-r"])
def test_a_terminal_gets_what_its_encoding_has(monkeypatch: pytest.MonkeyPatch, encoding: str) -> None:
    text = "find \N{RIGHTWARDS ARROW} \N{GRINNING FACE}"
    stdout = io.TextIOWrapper(io.BytesIO(), encoding=encoding, write_through=True)
    monkeypatch.setattr("sys.stdout", stdout)
    with pytest.raises(UnicodeEncodeError):
        stdout.write(text)
    replace_unknown_characters()
    echo(text)
    echo(json_line({"goal": text}))
    shown, as_json = stdout.buffer.getvalue().decode(encoding).splitlines()
    assert (shown, json.loads(as_json)) == ("find ? ?", {"goal": text})
