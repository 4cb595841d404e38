"""The names of models: `openai/<model>` is one of an OpenAI-compatible provider, any other one of Anthropic."""

from __future__ import annotations

from typing import Final

ANTHROPIC: Final = "anthropic"
OPENAI: Final = "openai"
_VENDORS: Final = (OPENAI, ANTHROPIC)


def vendor_of(model: str) -> tuple[str, str]:
    """Returns the vendor of a model, and the model's name as the vendor knows it."""
    for vendor in _VENDORS:
        if model.startswith(vendor + "/"):
            return vendor, model[len(vendor) + 1 :]
    return ANTHROPIC, model
