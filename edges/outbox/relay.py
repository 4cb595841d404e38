"""The relay of an outbox: sends each row to the gateway until it has a task, or the gateway refuses it.

A row is never lost: the relay claims rows for a time, and a relay that dies leaves them to the next claim. A row that
is sent again has the same Idempotency-Key, so that there is one task.
"""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

import httpx2

from edges.outbox.rows import Outbox, WaitingSubmit
from tenure.domain.errors import SOURCE_BUSY
from tenure.domain.retry import Jitter, RetryPolicy
from tenure.runtime.http.outbound_http import tls_context
from tenure.runtime.security.tls import ClientTls

AT_ONCE: Final = 32
CLAIM_SECONDS: Final = 60.0
REQUEST_SECONDS: Final = 20.0
IDLE_SECONDS: Final = 1.0
FORGET_SECONDS: Final = 60.0
LONGEST_PAUSE_SECONDS: Final = 3600.0
MAX_PROBLEM_CHARACTERS: Final = 500
RETRY: Final = RetryPolicy(max_attempts=2**31, initial_seconds=0.5, factor=2.0, cap_seconds=60.0, jitter=Jitter.EQUAL)
"""A row waits for the gateway however long it is away."""
_REFUSED: Final = frozenset({400, 404, 409, 413, 422})
"""The answers that the row itself causes. 401 and 403 are of the key, which an operator may change."""


@dataclass(frozen=True, slots=True)
class RowSent:
    """The task of the row."""

    task_id: str


@dataclass(frozen=True, slots=True)
class RowRefused:
    """The gateway refuses the row, and always will."""

    problem: str


@dataclass(frozen=True, slots=True)
class RowPutOff:
    """The row is sent again, not before `retry_after_seconds`. `is_busy`: its source has a task that has not ended."""

    problem: str
    retry_after_seconds: float = 0.0
    is_busy: bool = False


Answer = RowSent | RowRefused | RowPutOff


def answer_of(response: httpx2.Response) -> Answer:
    """Returns what the gateway's response means for the row."""
    try:
        body = response.json()
    except (ValueError, RecursionError):
        body = None
    said = body if isinstance(body, dict) else {}
    task_id = said.get("task_id")
    if response.is_success and isinstance(task_id, str) and re.fullmatch("[ -~]+", task_id):
        return RowSent(task_id)
    if response.is_success:
        return RowPutOff("the answer is not a task: is the URL that of the gateway's HTTP port?")
    code = said.get("code")
    parts = (f"HTTP {response.status_code}", code, said.get("detail") or response.text, *_violations(said))
    problem = ": ".join(str(part) for part in parts if part).replace("\0", "\ufffd")[:MAX_PROBLEM_CHARACTERS]
    if code == SOURCE_BUSY:
        return RowPutOff(problem, is_busy=True)
    if response.status_code in _REFUSED and code:  # a proxy's answer has no code of ours
        return RowRefused(problem)
    return RowPutOff(problem, _seconds(response.headers.get("retry-after", "")))


def _violations(said: dict[str, Any]) -> list[str]:
    violations = said.get("violations")
    if not isinstance(violations, list):
        return []
    return [f"{one.get('field')} {one.get('message')}" for one in violations if isinstance(one, dict)]


def _seconds(text: str) -> float:
    seconds = float(text) if text.isascii() and text.isdigit() and len(text) < 20 else 0.0
    return min(seconds, LONGEST_PAUSE_SECONDS)


def open_gateway(url: str, tenant: str, tls: ClientTls | None) -> httpx2.AsyncClient:
    """Returns a client of the gateway's HTTP port, to close after use. `tenant` "": that of the key.

    It trusts the machine's authorities and those of `tls`. Raises OSError (also ssl.SSLError) for unreadable files.
    """
    context = tls_context(str(tls.ca_file) if tls and tls.ca_file else None)
    if tls and tls.certificate_file:
        context.load_cert_chain(tls.certificate_file, tls.key_file)
    headers = {"Tenure-Tenant": tenant} if tenant else {}
    is_encrypted = urlsplit(url).scheme == "https"  # a proxy of the environment would read the key otherwise
    return httpx2.AsyncClient(base_url=url, headers=headers, timeout=None, verify=context, trust_env=is_encrypted)


class OutboxRelay:
    """Sends the rows of one outbox. Any number of relays may share it.

    `client`: of `open_gateway`. `api_key`: called for each request; "": none. `report`: gets a sentence when the state
    of the gateway changes, and for each refused row.
    """

    def __init__(
        self,
        outbox: Outbox,
        client: httpx2.AsyncClient,
        api_key: Callable[[], str],
        kept_seconds: float,
        report: Callable[[str], None],
    ) -> None:
        self._outbox, self._client, self._report = outbox, client, report
        self._api_key, self._kept_seconds = api_key, kept_seconds
        self._problem = ""

    async def run(self) -> None:
        """Runs until cancelled. Raises the errors of `open_outbox`."""
        loop = asyncio.get_running_loop()
        forget_at = loop.time()
        while True:
            if loop.time() >= forget_at:
                await self._outbox.forget(self._kept_seconds)
                await self._outbox.end_long_pauses(LONGEST_PAUSE_SECONDS)
                forget_at = loop.time() + FORGET_SECONDS
            if await self.round() < AT_ONCE:
                await self._outbox.wait(IDLE_SECONDS)

    async def round(self) -> int:
        """Sends due rows once, and records the answers. Returns the number of rows."""
        waiting = await self._outbox.claim(AT_ONCE, CLAIM_SECONDS)
        answers = await asyncio.gather(*map(self._send, waiting))
        for row, answer in zip(waiting, answers, strict=True):
            await self._record(row, answer)
        return len(waiting)

    async def _send(self, row: WaitingSubmit) -> Answer:
        headers = {b"Idempotency-Key": row.request_id.encode(), b"Content-Type": b"application/json"}
        try:
            if api_key := self._api_key():
                headers[b"Authorization"] = f"Bearer {api_key}".encode("ascii")
        except Exception as error:  # noqa: BLE001  whatever it is: the next attempt reads the key again
            return RowPutOff(f"the API key cannot be read: {error or type(error).__name__}"[:MAX_PROBLEM_CHARACTERS])
        try:
            async with asyncio.timeout(REQUEST_SECONDS):
                response = await self._client.post("/v1/tasks", content=row.task_json.encode(), headers=headers)
        except (httpx2.HTTPError, TimeoutError, OSError) as error:
            return RowPutOff(f"the gateway cannot be reached: {error or type(error).__name__}"[:MAX_PROBLEM_CHARACTERS])
        return answer_of(response)

    async def _record(self, row: WaitingSubmit, answer: Answer) -> None:
        match answer:
            case RowSent(task_id):
                await self._outbox.sent(row, task_id)
                self._note("")
            case RowRefused(problem):
                if await self._outbox.refuse(row, problem):
                    self._report(f"the gateway refuses {row.request_id}: {problem}")
            case RowPutOff(problem, retry_after_seconds, is_busy):
                seconds = RETRY.wait_seconds(row.attempts, random.random(), retry_after_seconds)
                await self._outbox.put_off(row, seconds, problem)
                self._note("" if is_busy else problem)

    def _note(self, problem: str) -> None:
        """Reports a change of the gateway's state, once."""
        if problem != self._problem:
            self._report(f"rows wait: {problem}" if problem else "the gateway accepts rows again")
        self._problem = problem
