"""What a source describes, as it is offered: within bounds, by the operator's word, and told where it is not."""

from __future__ import annotations

from services.tools.sources import MAX_TOOLS, Rules, SettleSettings, offered
from tenure.domain.tools import CallSettlement, CheckWith, EffectClass, ToolDefinition

UNSAFE, PURE = EffectClass.UNSAFE, EffectClass.PURE


def described(name: str, **fields: object) -> ToolDefinition:
    return ToolDefinition(name, "", "{}", UNSAFE, **fields)  # type: ignore[arg-type]  # any of its fields


def test_absent_settings_are_defaults_and_excess_is_cut() -> None:
    taken, problems = offered(
        "s",
        [
            described("unsaid", timeout_seconds=0.0, output_limit_bytes=0),
            described("much", timeout_seconds=1e9, output_limit_bytes=10**9),
            described("little", timeout_seconds=0.5, output_limit_bytes=1),
            described("nonsense", timeout_seconds=-5.0, output_limit_bytes=-1),
        ],
        Rules(),
    )
    said = {one.name: (one.timeout_seconds, one.output_limit_bytes) for one in taken.values()}
    assert said == {
        "s__unsaid": (30, 65_536),
        "s__much": (3600, 1_048_576),
        "s__little": (0.5, 1024),
        "s__nonsense": (30, 1024),
    }
    assert problems == []


def test_config_file_outranks_the_source() -> None:
    rules = Rules(frozenset({"x", "gone"}), {"x": PURE}, timeout_seconds=5, output_limit_bytes=2048)
    taken, problems = offered("s", [described("x"), described("y")], rules)
    (x,) = taken.values()
    assert (x.name, x.effect_class, x.timeout_seconds, x.output_limit_bytes) == ("s__x", PURE, 5, 2048)
    assert problems == ["'gone' is named in the config file, but there is no such tool"]


def test_settlement_is_that_of_the_config_file() -> None:
    """A source cannot say of its own calls how they are settled, nor name a check."""
    settle = {
        "x": SettleSettings.model_validate(
            {"for": "10m", "check_with": {"tool": "find", "arguments": {"key": "/key"}}}
        ),
        "y": SettleSettings.model_validate({"for": 5}),
        "z": SettleSettings(),
        "gone": SettleSettings(),
    }
    claims = CallSettlement(1e9, CheckWith("s__x"))
    tools = [described(name, settlement=claims) for name in ("x", "y", "z", "other")]
    taken, problems = offered("s", tools, Rules(effects={"z": PURE}, settle=settle))
    assert {name: tool.settlement for name, tool in taken.items()} == {
        "x": CallSettlement(600.0, CheckWith("find", '{"key": "/key"}')),
        "y": CallSettlement(5.0),
        "z": CallSettlement(),
        "other": None,
    }
    assert problems == [
        "settle of 'y' has no effect: an UNSAFE tool is never repeated, so only a check_with can settle its calls",
        "settle of 'z' has no effect: a PURE tool has nothing to settle",
        "'gone' is named in the config file, but there is no such tool",
    ]


def test_invalid_tool_is_left_out_with_its_reason() -> None:
    long = described("long")
    taken, problems = offered(
        "s", [described("x"), described("x"), described("x" * 62), described(""), described("a.b"), long], Rules()
    )
    assert list(taken) == ["x", "long"]
    assert [problem.partition(" is left out: ")[2] for problem in problems] == [
        f"'s__{'x' * 62}' is not a name of 1 to 64 characters of [a-zA-Z0-9_-]",
        "'s__' is not a name of 1 to 64 characters of [a-zA-Z0-9_-]",
        "'s__a.b' is not a name of 1 to 64 characters of [a-zA-Z0-9_-]",
        "",
    ]
    assert problems[-1] == "'x' is listed 2 times: only the first one is taken"


def test_tools_of_a_source_are_limited() -> None:
    taken, problems = offered("s", [described(f"t{number}") for number in range(10_000)], Rules())
    assert (len(taken), len(problems)) == (MAX_TOOLS, 1)


def test_a_name_behind_too_many_others_is_not_missing() -> None:
    rules = Rules(effects={"t9999": PURE})
    _, (problem,) = offered("s", [described(f"t{number}") for number in range(10_000)], rules)
    assert "are left out" in problem
