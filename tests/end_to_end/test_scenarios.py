"""docs/scenarios.md: a tool of one's own is tried without a key, by what the page says."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
import yaml

from tenure.cli.exit_codes import Exit
from tests.end_to_end.command import next_value, started, tenure

PAGE = Path(__file__).parents[2] / "docs" / "scenarios.md"
pytestmark = [pytest.mark.server, pytest.mark.timeout(600), pytest.mark.nightly]


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)


async def test_the_example_of_the_page_works_as_it_stands(tmp_path: Path) -> None:
    [server] = blocks("python")
    tools, scenario = blocks("yaml")
    (tmp_path / "notes.py").write_text(server)
    (tmp_path / "note.yaml").write_text(scenario)
    config = yaml.safe_load(tools)
    [shown] = config["mcp_servers"]["notes"]["read_only_paths"]
    assert shown == "/path/to"
    shown = [str(tmp_path / "notes.py"), sys.prefix, sys.base_prefix]
    config["mcp_servers"]["notes"].update(
        command=sys.executable, args=[str(tmp_path / "notes.py")], read_only_paths=shown
    )
    (tmp_path / "tools.yaml").write_text(yaml.safe_dump(config))
    words = ("--tools-config", str(tmp_path / "tools.yaml"), "--scenario", str(tmp_path / "note.yaml"))
    async with started("--json", "dev", "--data", str(tmp_path / "data"), "--latency-ms", "0", *words) as dev:
        address = (await next_value(dev))["gateway"]
        submitted = await tenure("submit", "buy milk", address=address)
        done = await tenure("tasks", "wait", submitted.out.strip(), address=address)
        assert (done.code, done.out.splitlines()[-1]) == (Exit.OK, "Done. The server said: There are 1 notes.")
        shown = await tenure("--json", "tools", "show", "notes__take_note", address=address)
        [tool] = shown.values
        assert (tool["source"], tool["effect_class"]) == ("notes", "IDEMPOTENT")
        assert "text" in tool["input_schema"]["properties"]
        unknown = await tenure("tools", "show", "notes__take_noet", address=address)
        assert (unknown.code, "the nearest: notes__take_note" in unknown.err) == (Exit.REFUSED, True)


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("mine.yaml", "- txt: Hello.\n", "turn 0: Additional properties are not allowed ('txt' was unexpected)"),
        ("mine.yaml", "- {text: x, calls: [{name: a, arguments: {}}]}\n", "turn 0: the last turn must not call tools"),
        ("mine.yaml", "- text: '{{results.0.0}}'\n", "turn 0: unknown reference {{results.0.0}}"),
        ("mine.yaml", "- [", "mine.yaml: while parsing"),
        ("My Model.yaml", "- text: x\n", "its name becomes the model name"),
    ],
)
async def test_an_unplayable_scenario_is_refused_before_the_start(
    tmp_path: Path, name: str, text: str, problem: str
) -> None:
    (tmp_path / name).write_text(text)
    data = tmp_path / "data"
    refused = await tenure("dev", "--data", str(data), "--scenario", str(tmp_path / name))
    assert refused.code == Exit.REFUSED
    assert "nothing is started: " in refused.err
    assert problem in refused.err
    assert "Postgres" not in refused.err
    assert not data.exists()
