"""The size of messages of ModelService, for its server and its clients."""

from __future__ import annotations

from typing import Final

MAX_MESSAGE_BYTES: Final = 32 * 1024 * 1024
"""The largest request that Anthropic accepts has 32 MB."""
