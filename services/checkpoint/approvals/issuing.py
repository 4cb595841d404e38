"""Makes the links of a message just before it is sent, so that no token is ever stored: only its digest is.

Each attempt of a delivery has new links, and those of an earlier attempt stay valid, because that attempt may have
arrived. The first answer of the wait ends them all.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC
from typing import Any, Final

from services.checkpoint.approvals.groups import APPROVALS, members_for
from services.checkpoint.queries import fetch_all, fetch_in_transaction, fetch_one
from services.checkpoint.webhooks.notifier import LinksByAddressee
from services.checkpoint.webhooks.sending import OutgoingDelivery
from tenure.domain.approvals import (
    DEFAULT_LINK_SECONDS,
    LINK_ID_BYTES,
    LINK_SECRET_BYTES,
    LONGEST_LINK_SECONDS,
    addressees_of,
    links_of,
    make_link_token,
    may_answer,
    problem_of_public_url,
    read_link_token,
    takes_links,
    wait_of,
)
from tenure.runtime.observability import metrics
from tenure.runtime.process import note_progress, rest
from tenure.runtime.settings import setting
from tenure.runtime.store.postgres import Connection, Pool, in_transaction
from tenure.v1 import task_pb2
from tenure.wire.common import moment
from tenure.wire.task import wait_to_domain

PREFIX: Final = "TENURE_CHECKPOINT_ANSWER_LINK_"
KEPT_SECONDS: Final = 7 * 24 * 3600.0
"""How long an expired link is kept, so that who opens it reads that it has expired."""
FORGOTTEN_AT_ONCE: Final = 1000
FORGET_INTERVAL_SECONDS: Final = 60.0


@dataclass(frozen=True, kw_only=True)
class LinkSettings:
    """TENURE_CHECKPOINT_ANSWER_LINK_…"""

    public_url: str = setting(
        "where people reach the gateway's HTTP port, such as https://tenure.example.com; empty: no links", default=""
    )
    seconds: float = setting(
        "longest life of a link; it never outlives its wait",
        default=DEFAULT_LINK_SECONDS,
        minimum=1,
        maximum=LONGEST_LINK_SECONDS,
    )

    def problems(self) -> Iterator[str]:
        """Yields what is wrong with the settings."""
        if self.public_url and (problem := problem_of_public_url(self.public_url)):
            yield f"{PREFIX}PUBLIC_URL {problem}"


class LinkIssuer:
    """Makes links. Without a public URL it makes none."""

    def __init__(self, pool: Pool, settings: LinkSettings) -> None:
        self._pool, self._settings = pool, settings

    @property
    def public_url(self) -> str:
        """Where people reach the gateway's HTTP port; "": unknown."""
        return self._settings.public_url

    async def links_for(self, delivery: OutgoingDelivery) -> LinksByAddressee:
        """Returns new links for a delivery about a wait that still lasts, for those who may answer it."""
        if not (self._settings.public_url and delivery.answer_links):
            return {}
        reported = wait_of(delivery.body)
        if reported is None:
            return {}
        return await in_transaction(self._pool, lambda connection: self._issue(connection, delivery, reported))

    async def _issue(self, connection: Connection, delivery: OutgoingDelivery, reported: str) -> LinksByAddressee:
        task = {"tenant": delivery.tenant, "task_id": delivery.line}
        row = await fetch_one(connection, APPROVALS.present_wait, task)
        if row is None:
            return {}
        kept = task_pb2.Wait.FromString(row[0])
        wait = wait_to_domain(kept)
        if (reported and reported != wait.wait_id) or not takes_links(wait.kind):
            return {}
        members = await members_for(connection, delivery.tenant, wait.approvers)
        addressees = [
            one
            for one in addressees_of(delivery.webhook_name, delivery.remaining_addresses)
            if may_answer(wait.approvers, members, one)
        ]
        if not addressees:
            return {}
        tokens = [make_link_token(os.urandom(LINK_ID_BYTES), os.urandom(LINK_SECRET_BYTES)) for _ in addressees]
        known = [read_link_token(token) for token in tokens]
        parameters: dict[str, Any] = {
            **task,
            "wait_id": wait.wait_id,
            "webhook_id": delivery.webhook_id,
            "deadline": moment(kept.deadline_time).astimezone(UTC),
            "seconds": float(self._settings.seconds),
            "link_ids": [one.link_id for one in known if one is not None],
            "digests": [one.digest for one in known if one is not None],
            "addressees": addressees,
        }
        if not await fetch_all(connection, APPROVALS.add_links, parameters):
            return {}  # the webhook was deleted
        metrics.count("tenure_answer_links_total", len(addressees), outcome="issued")
        issued = zip(addressees, tokens, strict=True)
        return {addressee: links_of(self._settings.public_url, token, wait) for addressee, token in issued}


class OldLinks:
    """The duty that deletes links that expired long ago."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def run(self) -> None:
        """Runs until cancelled."""
        parameters = {"kept_seconds": KEPT_SECONDS, "limit": FORGOTTEN_AT_ONCE}
        while True:
            while len(await fetch_in_transaction(self._pool, APPROVALS.forget_links, parameters)) == FORGOTTEN_AT_ONCE:
                note_progress()  # there may be more: as many may be made as deleted
            await rest(FORGET_INTERVAL_SECONDS)
