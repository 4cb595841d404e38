"""The file of a spool: the submits that wait for the gateway."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from google.protobuf.message import DecodeError

from tenure.domain.errors import AlreadyExists, LimitReached, Unavailable
from tenure.v1 import task_service_pb2 as api

LOCK_SECONDS: Final = 10.0
LONGEST_PAUSE_SECONDS: Final = 3600.0
"""A row with a longer pause is due: the clock was ahead when the pause began."""
_SCHEMA: Final = """
create table if not exists submits (
  request_id text primary key, request blob not null, kept_at real not null, attempts int not null default 0,
  next_attempt_at real not null default 0, refusal text not null default ''
)
"""


@dataclass(frozen=True, slots=True)
class SpooledSubmit:
    """A submit on disk, which is sent when the gateway is back. `refusal`: why the gateway will never accept it."""

    request_id: str
    refusal: str = ""


class KeptSubmit(NamedTuple):
    """A submit to send. `request`: as the file has it."""

    request_id: str
    request: bytes
    attempts: int


class SpoolFile:
    """The file of a spool: a database of SQLite, which survives a crash of the machine. Its methods block briefly.

    Each call has a connection of its own, so processes, threads and forks may share the file. It has goals and inputs,
    so only its owner may read it. Raises Unavailable (SPOOL_FAILED) for a file that cannot be used.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            path.touch(mode=0o600)
        except OSError as error:
            raise self._failed(error) from error
        with self._transaction() as spool:
            spool.execute(_SCHEMA)

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        try:
            with closing(sqlite3.connect(self._path, timeout=LOCK_SECONDS, isolation_level=None)) as spool:
                spool.execute("pragma journal_mode = wal")
                spool.execute("pragma synchronous = full")
                spool.execute("begin immediate")
                yield spool
                spool.execute("commit")
        except sqlite3.Error as error:
            raise self._failed(error) from error

    def _failed(self, error: Exception) -> Unavailable:
        return Unavailable(f"the spool {self._path} cannot be used: {error}", reason="SPOOL_FAILED")

    def keep(self, request: api.SubmitTaskRequest, most: int, most_bytes: int) -> None:
        """Keeps a submit. A repeat changes nothing; a submit that was refused is replaced, and is sent.

        Raises AlreadyExists (REQUEST_ID_REUSED) if another submit with its request id waits, LimitReached (SPOOL_FULL).
        """
        request_id, sent = request.request_id, request.SerializeToString()
        with self._transaction() as spool:
            waiting = spool.execute(
                "select request from submits where request_id = ? and refusal = ''", (request_id,)
            ).fetchone()
            if waiting is not None and (kept := decoded_request(waiting[0])) is not None:
                if kept != request:
                    message = f"the spool keeps another submit with the request id {request_id}: use a new request_id"
                    raise AlreadyExists(message, reason="REQUEST_ID_REUSED")
                return
            count, size = spool.execute(
                "select count(*), coalesce(sum(length(request)), 0) from submits where request_id <> ?", (request_id,)
            ).fetchone()
            if count >= most or size + len(sent) > most_bytes:
                message = f"the spool {self._path} is full: it has {count:,} submits of {size:,} bytes"
                raise LimitReached(message, reason="SPOOL_FULL")
            spool.execute(
                "insert or replace into submits (request_id, request, kept_at) values (?, ?, ?)",
                (request_id, sent, time.time()),
            )

    def due(self, limit: int) -> list[KeptSubmit]:
        """Returns the oldest submits to send. Two processes may send one: its request id makes one task of it."""
        now = time.time()
        with self._transaction() as spool:
            rows = spool.execute(
                "select request_id, request, attempts from submits"
                " where refusal = '' and next_attempt_at not between ? and ? order by kept_at limit ?",
                (now, now + LONGEST_PAUSE_SECONDS, limit),
            ).fetchall()
        return [KeptSubmit(*row) for row in rows]

    # What became of an attempt. The row may have another request by now: it keeps that one.

    def put_off(self, sent: KeptSubmit, seconds: float) -> None:
        """Lets a submit wait."""
        next_attempt_at = time.time() + min(seconds, LONGEST_PAUSE_SECONDS)
        self._change("update submits set attempts = attempts + 1, next_attempt_at = ?", sent, next_attempt_at)

    def refuse(self, sent: KeptSubmit, refusal: str) -> None:
        """Ends a submit that the gateway will never accept. It stays for people."""
        self._change("update submits set refusal = ?", sent, refusal)

    def sent(self, sent: KeptSubmit) -> None:
        """Deletes a submit that has a task."""
        self._change("delete from submits", sent)

    def _change(self, statement: str, sent: KeptSubmit, *values: float | str) -> None:
        with self._transaction() as spool:
            condition = "where request_id = ? and request = ?"
            spool.execute(f"{statement} {condition}", (*values, sent.request_id, sent.request))

    def forget(self, request_id: str) -> None:
        """Deletes a submit."""
        with self._transaction() as spool:
            spool.execute("delete from submits where request_id = ?", (request_id,))

    def listed(self) -> list[SpooledSubmit]:
        """Returns all submits, the oldest first."""
        with self._transaction() as spool:
            rows = spool.execute("select request_id, refusal from submits order by kept_at").fetchall()
        return [SpooledSubmit(*row) for row in rows]


def decoded_request(kept: object) -> api.SubmitTaskRequest | None:
    """Returns the submit in a row's column `request`; None: the row is damaged."""
    try:
        return api.SubmitTaskRequest.FromString(kept)  # type: ignore[arg-type]  # a damaged row may have any type
    except (DecodeError, TypeError):
        return None
