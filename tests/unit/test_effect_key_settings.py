"""Effect keys in the tool service's config file."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from edges.tools_config import ToolsConfig
from services.tools.sources import EffectKeySettings, Rules, offered
from services.tools.tool import Tool, ToolAnswer, define
from services.tools.toolbox import with_effect_keys
from tenure.domain.effect_keys import EffectKey, EffectScope, OnRepeat
from tenure.domain.tools import EffectClass
from tenure.runtime.settings import ConfigurationError

ORDER = {"arguments": ["/order"], "scope": "tree"}


@pytest.mark.parametrize(
    ("period", "seconds"), [("90s", 90.0), ("5m", 300.0), ("12h", 43200.0), ("30d", 2592000.0), (60, 60.0)]
)
def test_a_period_is_a_number_with_a_unit(period: object, seconds: float) -> None:
    read = EffectKeySettings.model_validate({"arguments": ["/order"], "scope": "tenant", "period": period})
    assert read.key == EffectKey(("/order",), EffectScope.TENANT, seconds)


@pytest.mark.parametrize(
    "wrong",
    [
        {"arguments": []},
        {"arguments": ["order"]},
        {"scope": "world"},
        {"scope": "tenant"},
        {"period": "30d"},
        {"scope": "tenant", "period": "30 days"},
        {"on_repeat": "again"},
        {"values": ["/order"]},
    ],
)
def test_a_wrong_effect_key_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        EffectKeySettings.model_validate({**ORDER, **wrong})


def test_each_kind_of_tool_takes_an_effect_key() -> None:
    config = ToolsConfig.model_validate(
        {
            "mcp_servers": {"crm": {"url": "https://crm.example/mcp", "effect_keys": {"refund": ORDER}}},
            "providers": {"bank": {"address": "127.0.0.1:1", "allow_insecure": True, "effect_keys": {"pay": ORDER}}},
            "http_tools": {"ship": {"url": "https://a.example", "description": "d", "effect_key": ORDER}},
            "built_in": {"append_record": {"effect_key": {**ORDER, "on_repeat": "ask"}}},
        }
    )
    key = EffectKey(("/order",), EffectScope.TREE)
    assert config.mcp_servers["crm"].rules.effect_keys["refund"].key == key
    assert config.providers["bank"].rules.effect_keys["pay"].key == key
    assert config.http_tools["ship"].definition("ship").effect_key == key
    assert config.built_in["append_record"].effect_key.key.on_repeat is OnRepeat.ASK


def test_a_sources_tools_get_their_effect_keys() -> None:
    rules = Rules(effect_keys={"pay": EffectKeySettings.model_validate(ORDER), "gone": EffectKeySettings(**ORDER)})
    described = [define(name, EffectClass.KEYED, "d", {}) for name in ("pay", "look")]
    tools, problems = offered("bank", described, rules)
    assert {name: tool.effect_key is not None for name, tool in tools.items()} == {"pay": True, "look": False}
    assert problems == ["'gone' is named in the config file, but there is no such tool"]


def test_an_effect_key_of_an_unknown_built_in_tool_is_refused() -> None:
    async def run(_context: Any, _arguments: Any) -> ToolAnswer:
        return ToolAnswer("")

    tool = Tool(define("pay", EffectClass.KEYED, "d", {}), run)
    key = EffectKey(("/order",), EffectScope.TREE)
    assert with_effect_keys([tool], {"pay": key})[0].definition.effect_key == key
    with pytest.raises(ConfigurationError, match=r"built_in\.look: there is no such built-in tool"):
        with_effect_keys([tool], {"look": key})
