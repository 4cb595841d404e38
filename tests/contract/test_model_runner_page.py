"""The settings on the page of the model runner exist, with the defaults that it states."""

from __future__ import annotations

import re
from dataclasses import MISSING, fields
from pathlib import Path

from services.models.settings import ModelsSettings

PAGE = Path(__file__).parents[2] / "docs" / "model_runner.md"
PREFIX = "TENURE_MODELS_"


def defaults() -> dict[str, str]:
    """The settings of the process, each with its default as the page writes it."""
    return {
        f"{PREFIX}{field.name.upper()}": ""
        if field.default is MISSING
        else f"{field.default:g}"
        if isinstance(field.default, int | float)
        else str(field.default)
        for field in fields(ModelsSettings)
    }


def test_every_setting_on_the_page_exists() -> None:
    named = set(re.findall(rf"{PREFIX}[A-Z_]*[A-Z]", PAGE.read_text()))
    known = defaults()
    assert len(named) > 6
    assert {name.removesuffix("_FILE") if name not in known else name for name in named} <= set(known)


def test_the_page_states_the_defaults() -> None:
    rows = re.findall(rf"^\| `({PREFIX}\w+)` \| (.*) \|$", PAGE.read_text(), re.MULTILINE)
    stated = {name: value[1] for name, text in rows if (value := re.search(r"\(([\w.:]+)\)", text))}
    assert len(stated) > 5
    assert stated == {name: defaults()[name] for name in stated}
