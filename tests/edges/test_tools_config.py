"""The config file: its variables are filled in, and the error names the place of every mistake."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from edges.tools_config import ToolsConfig, read_config
from services.tools.settings import ToolsSettings
from services.tools.sources import CompensationSettings, Rules, offered
from tenure.domain.tools import CallSettlement, CheckWith, Compensation, EffectClass, ToolDefinition
from tenure.runtime.settings import ConfigurationError, load


def written(directory: Path, text: str) -> Path:
    path = directory / "tools.yaml"
    path.write_text(text)
    return path


@pytest.mark.parametrize("text", ["", "{}", "# nothing yet\n"])
def test_empty_file_has_no_settings(tmp_path: Path, text: str) -> None:
    assert read_config(written(tmp_path, text), {}) == ToolsConfig() == read_config(None, {})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("no_such_section: 1", "no_such_section: Extra inputs are not permitted"),
        ("a: {b: ['x', '${MISSING}']}", "a.b.1: set the variable MISSING"),
        ("[1, 2]", "the file: Input should be a valid dictionary"),
        ("a: [", "it is not valid YAML: while parsing"),
        ("a: !!python/object/apply:os.getpid []", "it is not valid YAML: could not determine a constructor"),
        ("a: '" + "x" * 1024 * 1024 + "'", "it is larger than 1048576 bytes"),
    ],
)
def test_mistake_is_named_with_its_path(tmp_path: Path, text: Any, expected: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(ConfigurationError) as raised:
        read_config(path, {"HERE": "y"})
    [problem] = raised.value.problems
    assert problem.startswith(f"{path}: {expected}")


PAY = "http_tools: {{pay: {{url: 'https://a.example', description: d, effect_class: {}, settle: {}}}, find: {}}}"
FIND = "{{url: 'https://a.example', method: GET, description: d, effect_class: {}}}"


def test_settlement_has_one_description_for_all_kinds_of_tools(tmp_path: Path) -> None:
    settle = "{for: 1h30m, check_with: {tool: find, arguments: {key: /key, most: 1}}}"
    text = f"""
        mcp_servers: {{a: {{url: 'https://a.example', settle: {{pay: {settle}}}}}}}
        providers: {{b: {{address: 'localhost:1', settle: {{pay: {settle}}}}}}}
        {PAY.format("UNSAFE", settle, FIND.format("PURE"))}
    """
    config = read_config(written(tmp_path, text), {})
    declared = [config.mcp_servers["a"].settle["pay"], config.providers["b"].settle["pay"]]
    settlements = {one.settlement for one in declared} | {config.http_tools["pay"].definition("pay").settlement}
    assert settlements == {CallSettlement(5400.0, CheckWith("find", '{"key": "/key", "most": 1}'))}


@pytest.mark.parametrize(
    ("effect_class", "settle", "find_class", "expected"),
    [
        ("KEYED", "{for: soon}", "PURE", "http_tools.pay.settle.for: Value error, write a duration such as 90s"),
        ("KEYED", "{for: -1}", "PURE", "greater than or equal to 0"),
        ("KEYED", "{for: 25h}", "PURE", "less than or equal to 86400"),
        ("KEYED", "{check_with: {tool: find, arguments: 1}}", "PURE", "check_with.arguments"),
        ("KEYED", "{check_with: {tool: 'a b'}}", "PURE", "check_with.tool"),
        ("KEYED", "{check_with: {tool: find}}", "KEYED", "check_with needs a PURE tool: find is KEYED"),
        ("UNSAFE", "{for: 1m}", "PURE", "only a check_with can settle its calls"),
        ("PURE", "{for: 1m}", "PURE", "a PURE tool has nothing to settle"),
    ],
)
def test_settlement_that_cannot_be_is_refused(
    tmp_path: Path, effect_class: str, settle: str, find_class: str, expected: str
) -> None:
    with pytest.raises(ConfigurationError) as raised:
        read_config(written(tmp_path, PAY.format(effect_class, settle, FIND.format(find_class))), {})
    [problem] = raised.value.problems
    assert expected in problem


def test_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="No such file"):
        read_config(tmp_path / "none.yaml", {})


def test_a_variable_may_be_in_a_file(tmp_path: Path) -> None:
    path = written(tmp_path, "mcp_servers: {a: {url: 'https://a.example', headers: {Authorization: '${TOKEN}'}}}")
    with pytest.raises(ConfigurationError, match=r"mcp_servers\.a\.headers\.Authorization: TOKEN"):
        read_config(path, {"TOKEN_FILE": str(tmp_path / "none")})
    (tmp_path / "token").write_text("Bearer t\n")
    config = read_config(path, {"TOKEN_FILE": str(tmp_path / "token")})
    assert config.mcp_servers["a"].headers == {"Authorization": "Bearer t"}


def test_a_variable_that_is_escaped_is_not_filled_in(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError) as raised:
        read_config(written(tmp_path, "x${A}y$${B}: 1"), {"A": "1"})
    assert "x${A}y$${B}: Extra" in str(raised.value)  # keys are taken as they are
    with pytest.raises(ConfigurationError, match=r"a: .*C"):
        read_config(written(tmp_path, "a: '$${B} ${C}'"), {"A": "1"})


def test_a_uid_of_the_system_is_refused_as_a_setting(tmp_path: Path) -> None:
    environment = {
        "TENURE_TOOLS_POSTGRES_DSN": "postgresql://localhost/tools",
        "TENURE_TOOLS_VERIFYING_KEYS_FILE": str(tmp_path / "keys.json"),
        "TENURE_TOOLS_WORKSPACE_ROOT": str(tmp_path),
    }
    assert load(ToolsSettings, environment, prefix="TENURE_TOOLS_").sandbox_first_uid == 61_000
    with pytest.raises(ConfigurationError, match="TENURE_TOOLS_SANDBOX_FIRST_UID"):
        load(ToolsSettings, {**environment, "TENURE_TOOLS_SANDBOX_FIRST_UID": "999"}, prefix="TENURE_TOOLS_")


_PAY = "http_tools: {{pay: {{url: 'https://a.example', description: d, compensation: {0}}}, {1}}}"
_REFUND: Any = (
    "refund: {url: 'https://a.example', description: d, input_schema: {type: object, additionalProperties: false, "
    "properties: {payment: {type: string}}, required: [payment]}}"
)


@pytest.mark.parametrize(
    ("compensation", "problem"),
    [
        ("{tool: refnd}", "there is no tool 'refnd'; did you mean refund?"),
        ("{tool: bank__refund}", "there is no source 'bank' for the tool bank__refund"),
        ("{tool: delete_file}", "there is no tool 'delete_file'"),
        ("{tool: refund}", "http_tools.pay.compensation: refund requires payment"),
        ("{tool: refund, arguments: {payment: 1, why: x}}", "refund has no why"),
        ("{tool: refund, arguments: {payment: /key}}", "must begin with /arguments or /outcome"),
        ("{tool: 'no name'}", "tool: 'no name' must be the name of a tool"),
    ],
)
def test_compensation_that_cannot_work_is_refused(tmp_path: Path, compensation: str, problem: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(problem)):
        read_config(written(tmp_path, _PAY.format(compensation, _REFUND)), {})


def test_compensations_are_part_of_the_definitions(tmp_path: Path) -> None:
    declared = "{tool: refund, arguments: {payment: /outcome/id}}"
    config = read_config(written(tmp_path, _PAY.format(declared, _REFUND)), {})
    expected = Compensation("refund", '{"payment":"/outcome/id"}')
    assert config.http_tools["pay"].definition("pay").compensation == expected
    own = ToolDefinition("pay", "", "{}", EffectClass.UNSAFE, compensation=Compensation("steal", "{}"))
    compensations = {"pay": CompensationSettings(tool="refund", arguments={"payment": "/outcome/id"})}
    taken, problems = offered("bank", [own], Rules(compensations=compensations))
    assert (taken["pay"].compensation, problems) == (expected, [])
    assert offered("bank", [own], Rules())[0]["pay"].compensation is None, "the source's own word does not count"
