"""Converts the enums of webhooks, and their secrets to and from text; gives requests a secret."""

from __future__ import annotations

import base64
import binascii
import secrets
from typing import Final

from tenure.domain.webhooks import DeliveryState, GapReason, WebhookKind
from tenure.v1 import webhook_service_pb2 as pb
from tenure.wire.common import EnumMap

DELIVERY_STATES = EnumMap(DeliveryState, dict(pb.WebhookDeliveryState.items()), "WEBHOOK_DELIVERY_STATE", None)
GAP_REASONS = EnumMap(GapReason, dict(pb.WebhookGapReason.items()), "WEBHOOK_GAP_REASON", None)
WEBHOOK_KINDS = EnumMap(WebhookKind, dict(pb.WebhookKind.items()), "WEBHOOK_KIND", WebhookKind.STANDARD)

_PREFIX: Final = "whsec_"
_SECRET_BYTES: Final = 32
_MIN_SECRET_BYTES: Final = 24
_MAX_SECRET_BYTES: Final = 64


def new_secret() -> str:
    """Returns a new random secret as text."""
    return secret_text(secrets.token_bytes(_SECRET_BYTES))


def with_secret(request: pb.CreateWebhookRequest) -> pb.CreateWebhookRequest:
    """Returns the request with a secret: its own, or a new one. Only STANDARD webhooks have one."""
    completed = pb.CreateWebhookRequest()
    completed.CopyFrom(request)
    if WEBHOOK_KINDS.to_domain(request.kind) is WebhookKind.STANDARD:
        completed.secret = request.secret or new_secret()
    return completed


def secret_text(secret: bytes) -> str:
    """Returns a secret as `whsec_` and base64."""
    return _PREFIX + base64.b64encode(secret).decode()


def read_secret(text: str) -> bytes:
    """Returns the bytes of a secret. Raises ValueError for text that is not a secret."""
    try:
        secret = base64.b64decode(text.removeprefix(_PREFIX), validate=True)
    except binascii.Error:
        secret = b""
    if not text.startswith(_PREFIX) or not _MIN_SECRET_BYTES <= len(secret) <= _MAX_SECRET_BYTES:
        raise ValueError(f"must be {_PREFIX} and the base64 of {_MIN_SECRET_BYTES} to {_MAX_SECRET_BYTES} bytes")
    return secret
