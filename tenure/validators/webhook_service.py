"""Checks the requests of WebhookService, at the checkpoint service and at the gateway."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final
from urllib.parse import urlsplit

from tenure.domain.email_addresses import EMAIL_ADDRESS_RULE, MAX_EMAIL_ADDRESSES, is_email_address
from tenure.domain.webhooks import is_pattern
from tenure.v1 import webhook_service_pb2 as webhooks
from tenure.validators.common import Check, check_filter, check_no_id
from tenure.validators.rules import Violations
from tenure.wire.common import seconds
from tenure.wire.webhook_service import DELIVERY_STATES, read_secret

MAX_OVERLAP_SECONDS: Final = 7 * 24 * 3600


def _create(request: webhooks.CreateWebhookRequest, v: Violations) -> None:
    check_no_id("name", request.name, v)
    _target(request, v)
    are_patterns = all(is_pattern(event_type) for event_type in request.event_types)
    v.require(are_patterns, "event_types", "must be types such as task.succeeded or task.*")
    check_filter(request.filter, v)
    v.require(not request.filter.states, "filter.states", "must be empty: event_types selects the states")
    _secret(request.secret, v)


def _target(request: webhooks.CreateWebhookRequest, v: Violations) -> None:
    is_email = request.kind == webhooks.WEBHOOK_KIND_EMAIL
    if is_email:
        v.require(not request.url, "url", "must be empty for e-mail")
        _email_addresses(request.email_addresses, v)
    else:
        _url(request.url, v)
        v.require(not request.email_addresses, "email_addresses", "must be empty unless the kind is EMAIL")
    if is_email or request.kind == webhooks.WEBHOOK_KIND_SLACK:
        v.require(not request.secret, "secret", "must be empty: only requests of the kind STANDARD are signed")


def _email_addresses(addresses: Sequence[str], v: Violations) -> None:
    field = "email_addresses"
    v.require(1 <= len(addresses) <= MAX_EMAIL_ADDRESSES, field, f"must be 1 to {MAX_EMAIL_ADDRESSES} addresses")
    v.require(all(map(is_email_address, addresses)), field, EMAIL_ADDRESS_RULE)
    v.require(len({address.lower() for address in addresses}) == len(addresses), field, "must be different addresses")


def _url(url: str, v: Violations) -> None:
    v.require(url.isascii() and url.isprintable() and " " not in url, "url", "must be printable ASCII, percent-encoded")
    try:
        parts = urlsplit(url)
        is_valid = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:  # unbalanced brackets, or a port that is not a number
        is_valid = False
    v.require(is_valid, "url", "must be http://host… or https://host…")
    if is_valid:
        v.require("@" not in parts.netloc, "url", "must not contain a user or a password")
        v.require("#" not in url, "url", "must not have a fragment")


def _secret(secret: str, v: Violations) -> None:
    if not secret:
        return
    try:
        read_secret(secret)
    except ValueError as error:
        v.require(holds=False, field="secret", description=str(error))


def _rotate(request: webhooks.RotateWebhookSecretRequest, v: Violations) -> None:
    _secret(request.secret, v)
    if request.HasField("overlap"):
        v.between("overlap", seconds(request.overlap), 0, MAX_OVERLAP_SECONDS)


def _list_deliveries(request: webhooks.ListWebhookDeliveriesRequest, v: Violations) -> None:
    for state in request.states:
        try:
            DELIVERY_STATES.to_domain(state)
        except ValueError:
            v.require(holds=False, field="states", description="must be delivery states")
    token = request.page_token
    v.require(
        not token or (token.isascii() and token.isdecimal() and len(token) < 19),
        "page_token",
        "must be the next_page_token of an earlier answer",
    )


CHECKS: Final[dict[type, Check]] = {
    webhooks.CreateWebhookRequest: _create,
    webhooks.RotateWebhookSecretRequest: _rotate,
    webhooks.ListWebhookDeliveriesRequest: _list_deliveries,
}
