"""The enums of webhooks, and their secrets as people pass them on."""

from __future__ import annotations

import base64
import binascii
import secrets
from typing import Final

from tenure.domain.webhooks import DeliveryState, GapReason
from tenure.v1 import webhook_service_pb2 as pb
from tenure.wire.common import EnumMap

DELIVERY_STATES = EnumMap(DeliveryState, dict(pb.WebhookDeliveryState.items()), "WEBHOOK_DELIVERY_STATE", None)
GAP_REASONS = EnumMap(GapReason, dict(pb.WebhookGapReason.items()), "WEBHOOK_GAP_REASON", None)

_PREFIX: Final = "whsec_"
_SECRET_BYTES: Final = 32
_LEAST_BYTES: Final = 24
_MOST_BYTES: Final = 64


def new_secret() -> str:
    """One that nobody has yet."""
    return secret_text(secrets.token_bytes(_SECRET_BYTES))


def secret_text(secret: bytes) -> str:
    """`whsec_…`."""
    return _PREFIX + base64.b64encode(secret).decode()


def read_secret(text: str) -> bytes:
    """Raises ValueError for what is none."""
    try:
        secret = base64.b64decode(text.removeprefix(_PREFIX), validate=True)
    except binascii.Error:
        secret = b""
    if not text.startswith(_PREFIX) or not _LEAST_BYTES <= len(secret) <= _MOST_BYTES:
        raise ValueError(f"must be {_PREFIX} and the base64 of {_LEAST_BYTES} to {_MOST_BYTES} bytes")
    return secret
