"""Watches a prefix: a stream of changes that survives broken connections and detects silent ones.

A watch is a hint, a list is the truth. Every event that could make the hints incomplete ends the watch with a Resync;
the caller then lists and watches again from there.
"""

from __future__ import annotations

import asyncio
import enum
import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import TypeAlias

import grpc.aio

from services.coordinator.etcd import stubs
from services.coordinator.etcd.calls import EtcdError, backoff_seconds, read
from services.coordinator.etcd.endpoints import REQUIRE_LEADER, Endpoint, Endpoints
from services.coordinator.etcd.transactions import KeyValue, key_value, prefix_end
from tenure.runtime.process import note_progress

# One connection of a watch, with detection of silence.

# The stream is replaced every hour, so that each call has a deadline.
_STREAM_MAX_AGE_SECONDS = 3_600.0
_CLOSE_SECONDS = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchPatience:
    """After `idle_seconds` without a message, etcd is asked for one; it has `answer_seconds` to send any message."""

    idle_seconds: float = 3.0
    answer_seconds: float = 2.0


class StreamLostError(Exception):
    """The stream broke, was canceled, or became silent: watch again on another connection."""


async def responses(
    endpoint: Endpoint, create: stubs.WatchRequest, patience: WatchPatience
) -> AsyncGenerator[stubs.WatchResponse, None]:
    """Opens a watch and yields etcd's messages, the `created` answer first. Raises StreamLostError at every end.

    Reads a message when the caller asks for it: a slow reader slows etcd down instead of filling memory.
    """
    call = endpoint.watch.Watch(timeout=_STREAM_MAX_AGE_SECONDS, metadata=REQUIRE_LEADER)
    reader = _Reader(call)
    try:
        await reader.send(create, within_seconds=patience.answer_seconds)
        response = await reader.next(within_seconds=patience.answer_seconds)
        while True:
            if response is None:
                raise StreamLostError("was silent for too long")
            note_progress()
            yield response
            response = await reader.next(within_seconds=patience.idle_seconds)
            if response is None:
                progress = stubs.WatchRequest(progress_request=stubs.WatchProgressRequest())
                await reader.send(progress, within_seconds=patience.answer_seconds)
                response = await reader.next(within_seconds=patience.answer_seconds)
    except grpc.aio.AioRpcError as error:
        raise StreamLostError(f"{error.code().name}: {error.details()}") from error
    finally:
        await reader.aclose()


class _Reader:
    """Reads with a time limit.

    Cancelling a read of grpc.aio cancels the whole call, so a pending read is kept instead.
    """

    def __init__(self, call: grpc.aio.StreamStreamCall[stubs.WatchRequest, stubs.WatchResponse]) -> None:
        self._call = call
        self._reading: asyncio.Task[stubs.WatchResponse] | None = None

    async def send(self, request: stubs.WatchRequest, *, within_seconds: float) -> None:
        """Sends a request. A write that blocks counts as a dead stream."""
        try:
            async with asyncio.timeout(within_seconds):
                await self._call.write(request)
        except TimeoutError as error:
            raise StreamLostError("did not accept a request in time") from error
        except asyncio.InvalidStateError as error:
            raise StreamLostError("ended") from error

    async def next(self, *, within_seconds: float) -> stubs.WatchResponse | None:
        """Returns the next message, or None if none came in time; the read goes on, and a later call gets it."""
        if self._reading is None:
            self._reading = asyncio.create_task(self._read(), name="etcd-watch-read")
        done, _ = await asyncio.wait({self._reading}, timeout=within_seconds)
        if not done:
            return None
        reading, self._reading = self._reading, None
        return reading.result()

    async def aclose(self) -> None:
        self._call.cancel()
        if self._reading is not None:
            await asyncio.wait({self._reading}, timeout=_CLOSE_SECONDS)
            if self._reading.done() and not self._reading.cancelled():
                # Retrieved, so that asyncio does not report it as lost: the stream is being closed anyway.
                self._reading.exception()

    async def _read(self) -> stubs.WatchResponse:
        response = await self._call.read()
        if not isinstance(response, stubs.WatchResponse):  # grpc.aio.EOF
            raise StreamLostError("ended by etcd")
        return response


log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class KeyChange:
    """A key was put or deleted. For a deletion `key_value` has only the key and the revision of the deletion.

    `previous` is the former value, if the watch asked for it and etcd still has it.
    """

    key_value: KeyValue
    deleted: bool
    previous: KeyValue | None


@dataclass(frozen=True, slots=True)
class KeyChanges:
    """All changes under the prefix of one or more complete revisions. `revision` is that of the last one."""

    revision: int
    changes: tuple[KeyChange, ...]


@dataclass(frozen=True, slots=True)
class WatchReconnected:
    """The watch continues over another connection; `revision` is the member's at that time.

    It does not prove that no change was missed: if history was compacted meanwhile, a Resync follows soon.
    """

    revision: int


class ResyncReason(enum.Enum):
    """The reason why changes may have been missed."""

    COMPACTED = "COMPACTED"
    REVISION_WENT_BACK = "REVISION_WENT_BACK"
    CLUSTER_CHANGED = "CLUSTER_CHANGED"


@dataclass(frozen=True, slots=True)
class Resync:
    """Changes may have been missed: list again. It is the last item of a watch.

    `revision` is etcd's present one; for COMPACTED, the one up to which history is deleted.
    """

    reason: ResyncReason
    revision: int


WatchItem: TypeAlias = KeyChanges | WatchReconnected | Resync


class EtcdWatch:
    """One watch of a prefix, over any number of connections. Iterate it once."""

    def __init__(
        self,
        endpoints: Endpoints,
        prefix: bytes,
        start_revision: int,
        *,
        namespace: bytes,
        previous: bool,
        patience: WatchPatience,
    ) -> None:
        if start_revision < 1:
            raise ValueError("a watch starts at a revision: list first, then watch from the listing's revision + 1")
        self._endpoints = endpoints
        self._prefix = namespace + prefix
        self._namespace = namespace
        self._next_revision = start_revision
        self._previous = previous
        self._patience = patience
        self._cluster_id: int | None = None
        self._failures = 0
        # The events of a revision whose other events are still to come, in the next part of the same answer.
        self._incomplete: list[stubs.Event] = []

    async def items(self) -> AsyncGenerator[WatchItem, None]:
        """Yields items until a Resync, and replaces broken connections."""
        while True:
            endpoint = self._endpoints.current
            self._incomplete = []
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
                # Without parts, an answer with much to catch up on is larger than a channel accepts, each time again.
                fragment=True,
            )
        )

    async def _digest(self, response: stubs.WatchResponse) -> WatchItem | None:
        if response.compact_revision:
            return Resync(ResyncReason.COMPACTED, response.compact_revision)
        if response.canceled:
            raise StreamLostError(f"canceled by etcd: {response.cancel_reason or 'no reason given'}")
        if response.created:
            return await self._check_history(response.header)
        return self._changes(self._complete(response))

    async def _check_history(self, header: stubs.ResponseHeader) -> WatchItem | None:
        """Checks that this is the same etcd with the same history as before.

        This check is necessary: etcd accepts a watch from a future revision without an error.
        """
        if self._cluster_id is not None and header.cluster_id != self._cluster_id:
            return Resync(ResyncReason.CLUSTER_CHANGED, header.revision)
        if header.revision < self._next_revision - 1:
            # Either history was lost, or this member is behind: only a linearizable read can tell.
            revision = await self._current_revision()
            if revision < self._next_revision - 1:
                return Resync(ResyncReason.REVISION_WENT_BACK, revision)
        first, self._cluster_id = self._cluster_id is None, header.cluster_id
        self._failures = 0
        return None if first else WatchReconnected(header.revision)

    async def _current_revision(self) -> int:
        request = stubs.RangeRequest(key=self._prefix or b"\x00", count_only=True)
        try:
            answer = await read(self._endpoints, _range, request, timeout_seconds=self._patience.answer_seconds)
        except EtcdError as error:
            raise StreamLostError(f"the revision could not be confirmed: {error}") from error
        return answer.header.revision

    def _complete(self, response: stubs.WatchResponse) -> Sequence[stubs.Event]:
        """Returns the events of complete revisions, and keeps those of a revision that goes on in the next part."""
        events = [*self._incomplete, *response.events]
        self._incomplete = []
        if response.fragment and events:
            last = events[-1].kv.mod_revision
            self._incomplete = [event for event in events if event.kv.mod_revision == last]
            del events[len(events) - len(self._incomplete) :]
        return events

    def _changes(self, events: Sequence[stubs.Event]) -> KeyChanges | None:
        # A watch that started in the future of a member that is behind was given older events (etcd #20221).
        fresh = [event for event in events if event.kv.mod_revision >= self._next_revision]
        if not fresh:
            return None
        revision = max(event.kv.mod_revision for event in fresh)
        # Not the header's revision, which may be ahead of events that are still to come.
        self._next_revision = revision + 1
        return KeyChanges(revision, tuple(self._change(event) for event in fresh))

    def _change(self, event: stubs.Event) -> KeyChange:
        previous = key_value(event.prev_kv, self._namespace) if event.HasField("prev_kv") else None
        return KeyChange(key_value(event.kv, self._namespace), event.type == stubs.Event.DELETE, previous)


def _range(endpoint: Endpoint) -> grpc.aio.UnaryUnaryMultiCallable[stubs.RangeRequest, stubs.RangeResponse]:
    return endpoint.kv.Range
