"""The names of models: `openai/<model>` is one of an OpenAI-compatible provider, any other one of Anthropic."""

from __future__ import annotations

from typing import Final

ANTHROPIC: Final = "anthropic"
OPENAI: Final = "openai"
LIMITS_REMEDY: Final = (
    "if the model has other limits, set context_window_tokens and max_output_tokens of its endpoint, or of the task "
    "(docs/models.md)"
)
_VENDORS: Final = (OPENAI, ANTHROPIC)
DEFAULT_MAX_OUTPUT_TOKENS: Final = 8192
"""The most output of a model call that states none."""
ATTEMPT_HEADER: Final = "x-tenure-attempt"
"""The header of a request that names its attempt in the provider's logs."""
VENDOR_PATHS: Final = {"/v1/messages": ANTHROPIC, "/chat/completions": OPENAI, "/responses": OPENAI}
"""The methods of the vendors that generate, below the base URLs of their libraries: what a model runner passes on."""


def vendor_of_path(path: str) -> str | None:
    """Returns the vendor of a method that a model runner passes on, with any query; None: it passes on none such."""
    return VENDOR_PATHS.get(path.partition("?")[0])


def vendor_of(model: str) -> tuple[str, str]:
    """Returns the vendor of a model, and the model's name as the vendor knows it."""
    for vendor in _VENDORS:
        if model.startswith(vendor + "/"):
            return vendor, model[len(vendor) + 1 :]
    return ANTHROPIC, model


def full_name(vendor: str, name: str) -> str:
    """Returns the model's name with the vendor that `vendor_of` finds in it."""
    return name if vendor == ANTHROPIC else f"{vendor}/{name}"
