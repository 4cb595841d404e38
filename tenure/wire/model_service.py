"""What the server and the clients of ModelService have in common: sizes of messages, and the reason of a refusal."""

from __future__ import annotations

from typing import Final

MAX_BODY_BYTES: Final = 32 * 1024 * 1024
"""The limit of a request of a vendor's library, as in the protos. The largest that Anthropic accepts has 32 MB."""
MAX_MESSAGE_BYTES: Final = MAX_BODY_BYTES + 256 * 1024
"""The limit of a message: a body, and the token and all else beside it."""

REQUEST_DIFFERS: Final = "REQUEST_DIFFERS"
"""The reason of a refusal: the call began with another request than the one that would join it."""
