"""The platforms on which Anthropic's models run, and what each needs. Imports no library of a provider."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Final

API: Final = "api"
BEDROCK: Final = "bedrock"
VERTEX: Final = "vertex"
PLATFORMS: Final = (API, BEDROCK, VERTEX)
_MODULE_OF_EXTRA: Final = {BEDROCK: "botocore", VERTEX: "google.auth"}


def missing_extra(platform: str) -> str | None:
    """Returns what to install for a platform, or None if its libraries are installed."""
    module = _MODULE_OF_EXTRA.get(platform)
    if module is None or _is_installed(module):
        return None
    return f"the platform {platform} needs libraries that are not installed: pip install 'tenure[{platform}]'"


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # the package around the module
        return False
