"""Watching a prefix: a stream of changes that survives its connections and never falls silent.

A watch is a hint, a list is the truth. Whatever could make the hints incomplete ends the watch with a Resync; the
caller then lists and watches again from there.
"""

from __future__ import annotations

import asyncio
import enum
import logging
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import grpc.aio

from tenure.runtime.duties import note_progress
from tenure.runtime.etcd import stubs
from tenure.runtime.etcd.calls import backoff_seconds, read
from tenure.runtime.etcd.errors import EtcdError
from tenure.runtime.etcd.values import KeyValue, key_value, prefix_end
from tenure.runtime.etcd.watch_stream import StreamLostError, WatchPatience, responses

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from tenure.runtime.etcd.endpoints import Endpoint, Endpoints

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Change:
    """A key was put or deleted. Of a deleted one `key_value` has the key and the revision of the deletion only.

    `previous` is what it replaced, if the watch asked for it and etcd still keeps it.
    """

    key_value: KeyValue
    deleted: bool
    previous: KeyValue | None


@dataclass(frozen=True, slots=True)
class Changes:
    """All changes under the prefix of one or more revisions, none of them cut in two. `revision` is the last one's."""

    revision: int
    changes: tuple[Change, ...]


@dataclass(frozen=True, slots=True)
class Reconnected:
    """The watch goes on over another connection; `revision` is the member's at that time.

    No proof yet that nothing was missed: if history was compacted meanwhile, a Resync follows in a moment.
    """

    revision: int


class ResyncReason(enum.Enum):
    """Why changes may have been missed."""

    COMPACTED = "COMPACTED"
    REVISION_WENT_BACK = "REVISION_WENT_BACK"
    CLUSTER_CHANGED = "CLUSTER_CHANGED"


@dataclass(frozen=True, slots=True)
class Resync:
    """Changes may have been missed: list again. The last item of a watch.

    `revision` is the one etcd is at; for COMPACTED, the one up to which history is gone.
    """

    reason: ResyncReason
    revision: int


WatchItem: TypeAlias = Changes | Reconnected | Resync


class Watch:
    """One watch of a prefix, over as many connections as it takes. Iterate it once."""

    def __init__(
        self, endpoints: Endpoints, prefix: bytes, start_revision: int, *, previous: bool, patience: WatchPatience
    ) -> None:
        if start_revision < 1:
            raise ValueError("a watch starts at a revision: list first, then watch from the listing's revision + 1")
        self._endpoints = endpoints
        self._prefix = prefix
        self._next_revision = start_revision
        self._previous = previous
        self._patience = patience
        self._cluster_id: int | None = None
        self._failures = 0

    async def items(self) -> AsyncGenerator[WatchItem, None]:
        """Yield what happens until a Resync; connections are replaced for as long as it takes."""
        while True:
            endpoint = self._endpoints.current
            try:
                async with aclosing(responses(endpoint, self._request(), self._patience)) as stream:
                    async for response in stream:
                        item = await self._digest(response)
                        if item is not None:
                            yield item
                        if isinstance(item, Resync):
                            log.warning("watch of %r must resync: %s", self._prefix, item)
                            return
            except StreamLostError as lost:
                note_progress()
                self._failures += 1
                log.warning(
                    "watch of %r lost %s (%s), next: revision %d",
                    self._prefix,
                    endpoint.target,
                    lost,
                    self._next_revision,
                )
                self._endpoints.rotate(endpoint)
                await asyncio.sleep(backoff_seconds(self._failures))

    def _request(self) -> stubs.WatchRequest:
        return stubs.WatchRequest(
            create_request=stubs.WatchCreateRequest(
                key=self._prefix or b"\x00",
                range_end=prefix_end(self._prefix),
                start_revision=self._next_revision,
                progress_notify=True,
                prev_kv=self._previous,
            )
        )

    async def _digest(self, response: stubs.WatchResponse) -> WatchItem | None:
        if response.compact_revision:
            return Resync(ResyncReason.COMPACTED, response.compact_revision)
        if response.canceled:
            raise StreamLostError(f"canceled by etcd: {response.cancel_reason or 'no reason given'}")
        if response.created:
            return await self._check_history(response.header)
        return self._changes(response.events)

    async def _check_history(self, header: stubs.ResponseHeader) -> WatchItem | None:
        """Is this still the etcd, and the history, that we were watching?

        It has to be asked here: etcd accepts a watch from a revision it does not have yet, and says nothing.
        """
        if self._cluster_id is not None and header.cluster_id != self._cluster_id:
            return Resync(ResyncReason.CLUSTER_CHANGED, header.revision)
        if header.revision < self._next_revision - 1:
            # Either history was lost, or this member merely lags behind: only a linearizable read can tell.
            revision = await self._current_revision()
            if revision < self._next_revision - 1:
                return Resync(ResyncReason.REVISION_WENT_BACK, revision)
        first, self._cluster_id = self._cluster_id is None, header.cluster_id
        self._failures = 0
        return None if first else Reconnected(header.revision)

    async def _current_revision(self) -> int:
        request = stubs.RangeRequest(key=self._prefix or b"\x00", count_only=True)
        try:
            answer = await read(self._endpoints, _range, request, timeout_seconds=self._patience.answer_seconds)
        except EtcdError as error:
            raise StreamLostError(f"the revision could not be confirmed: {error}") from error
        return answer.header.revision

    def _changes(self, events: Sequence[stubs.Event]) -> Changes | None:
        # A watch that started in the future of a lagging member was seen to be given older events (etcd #20221).
        fresh = [event for event in events if event.kv.mod_revision >= self._next_revision]
        if not fresh:
            return None
        revision = max(event.kv.mod_revision for event in fresh)
        # Not the header's revision: it may be ahead of events that are still to come.
        self._next_revision = revision + 1
        return Changes(revision, tuple(_change(event) for event in fresh))


def _change(event: stubs.Event) -> Change:
    previous = key_value(event.prev_kv) if event.HasField("prev_kv") else None
    return Change(key_value(event.kv), event.type == stubs.Event.DELETE, previous)


def _range(endpoint: Endpoint) -> grpc.aio.UnaryUnaryMultiCallable[stubs.RangeRequest, stubs.RangeResponse]:
    return endpoint.kv.Range
