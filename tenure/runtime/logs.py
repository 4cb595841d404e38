"""Logs: one JSON object a line for machines, or lines for a person at a terminal.

What a line is about is said by `extra=` of the call and by `log_context` around it:

    with log_context(task=task_id, epoch=epoch):
        log.info("committed", extra={"sequence": 17})
"""

from __future__ import annotations

import json
import logging
import sys
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, TextIO

from opentelemetry import trace

from tenure.runtime.request_context import DEFAULT_TENANT, current_tenant

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_CONTEXT: ContextVar[Mapping[str, Any]] = ContextVar("log_context", default={})  # noqa: B039  never changed in place
_RECORDS_OWN: Final = frozenset((*vars(logging.makeLogRecord({})), "message", "asctime", "taskName"))
_LONGEST_VALUE: Final = 8192
_TALKATIVE: Final = ("httpx", "httpx2", "mcp")
"""They tell each request's whole URL at INFO, and a secret may be in its query."""

FORMATS: Final = ("json", "human")


@contextmanager
def log_context(**facts: Any) -> Iterator[None]:
    """Every record of this task (and the tasks it starts) inside carries these facts, over those further out."""
    token = _CONTEXT.set({**_CONTEXT.get(), **facts})
    try:
        yield
    finally:
        _CONTEXT.reset(token)


def configure_logs(
    service: str, *, form: str = "json", level: str = "INFO", stream: TextIO | None = None
) -> logging.Handler:
    """Send all records to `stream` (standard error) in this form. Replaces what was configured before."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter(service) if form == "json" else HumanFormatter())
    root = logging.getLogger()
    for former in root.handlers[:]:
        root.removeHandler(former)
    root.addHandler(handler)
    root.setLevel(level)
    for name in _TALKATIVE:
        logging.getLogger(name).setLevel(max(logging.WARNING, root.level))
    logging.captureWarnings(capture=True)
    return handler


class JsonFormatter(logging.Formatter):
    """time, level, logger, message, service, then the facts, then the trace and the stack if there are any."""

    def __init__(self, service: str) -> None:
        super().__init__()
        self._service = service

    def format(self, record: logging.LogRecord) -> str:
        """One line; a value that JSON does not know is shown as its text."""
        line = {
            "time": datetime.fromtimestamp(record.created, UTC)
            .isoformat(timespec="milliseconds")
            .replace("+00:00", "Z"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            "service": self._service,
            **_facts(record),
        }
        if record.exc_info:
            line["stack"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str, ensure_ascii=False)


class HumanFormatter(logging.Formatter):
    """`12:00:01.250 INFO  checkpoint  committed  task=… epoch=…`, the stack below."""

    def format(self, record: logging.LogRecord) -> str:
        """The lines of one record."""
        at = datetime.fromtimestamp(record.created).astimezone().strftime("%H:%M:%S.%f")[:-3]
        facts = " ".join(f"{name}={value}" for name, value in _facts(record).items())
        where = record.name.removeprefix("tenure.").removeprefix("services.")
        line = f"{at} {record.levelname:<7} {where}  {record.getMessage()}  {facts}".rstrip()
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


def _facts(record: logging.LogRecord) -> dict[str, Any]:
    """The context's facts, then the record's own. Names that a line has anyway are not overwritten."""
    facts = dict(_CONTEXT.get())
    if (tenant := current_tenant()) != DEFAULT_TENANT:
        facts["tenant"] = tenant
    span = trace.get_current_span().get_span_context()
    if span.is_valid:
        facts["trace_id"] = trace.format_trace_id(span.trace_id)
    facts.update((name, value) for name, value in vars(record).items() if name not in _RECORDS_OWN)
    return {name: _bounded(value) for name, value in facts.items() if name not in _LINES_OWN}


_LINES_OWN: Final = frozenset(("time", "level", "logger", "message", "stack"))


def _bounded(value: Any) -> Any:
    if isinstance(value, str) and len(value) > _LONGEST_VALUE:
        return f"{value[:_LONGEST_VALUE]}… ({len(value)} characters)"
    return value
