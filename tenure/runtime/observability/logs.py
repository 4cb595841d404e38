"""Log formats: one JSON object per line for machines, or plain lines for a person at a terminal.

The fields of a line come from `extra=` of the call and from the `log_context` around it:

    with log_context(task=task_id, epoch=epoch):
        log.info("committed", extra={"sequence": 17})
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, Final, TextIO

from tenure.runtime.observability import metrics
from tenure.runtime.request_context import DEFAULT_TENANT, current_tenant, traceparent

_CONTEXT: ContextVar[Mapping[str, Any]] = ContextVar("log_context", default={})  # noqa: B039  never changed in place
_RECORD_ATTRIBUTES: Final = frozenset((*vars(logging.makeLogRecord({})), "message", "asctime", "taskName"))
_LONGEST_VALUE: Final = 8192
_VERBOSE_LOGGERS: Final = ("httpx", "httpx2", "mcp")
"""They log the whole URL of each request at INFO, and its query may hold a secret."""

FORMATS: Final = ("json", "human")


class _LogContext:
    """No generator: each tool call has one, and a generator takes several times as long."""

    __slots__ = ("_fields", "_token")

    def __init__(self, fields: dict[str, Any]) -> None:
        self._fields = fields

    def __enter__(self) -> None:
        self._token = _CONTEXT.set({**_CONTEXT.get(), **self._fields})

    def __exit__(self, *_: object) -> None:
        _CONTEXT.reset(self._token)


def log_context(**fields: Any) -> AbstractContextManager[None]:
    """Adds `fields` to every record that this asyncio task, or a task that it starts, logs inside the block.

    An inner context overrides the same field of an outer one.
    """
    return _LogContext(fields)


def logged_context() -> Mapping[str, Any]:
    """Returns the fields of the `log_context` blocks around the caller."""
    return _CONTEXT.get()


def configure_logs(
    service: str, *, form: str = "json", level: str = "INFO", stream: TextIO | None = None
) -> logging.Handler:
    """Sends all records to `stream` (default: standard error) in the format `form`.

    Replaces the handlers of the root logger.
    """
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter(service) if form == "json" else HumanFormatter())
    handler.addFilter(_count)
    for counted in ("WARNING", "ERROR", "CRITICAL"):
        metrics.cell("tenure_log_lines_total", level=counted)  # from 0 on, so that the first line is an increase
    root = logging.getLogger()
    for former in root.handlers[:]:
        root.removeHandler(former)
    root.addHandler(handler)
    root.setLevel(level)
    for name in _VERBOSE_LOGGERS:
        logging.getLogger(name).setLevel(max(logging.WARNING, root.level))
    logging.captureWarnings(capture=True)
    return handler


def _count(record: logging.LogRecord) -> bool:
    """Counts the lines that an operator should know of."""
    if record.levelno >= logging.WARNING:
        metrics.count("tenure_log_lines_total", level=record.levelname)
    return True


class JsonFormatter(logging.Formatter):
    """Formats a record as one JSON object: time, level, logger, message, service, the fields, and any stack."""

    def __init__(self, service: str) -> None:
        super().__init__()
        self._service = service

    def format(self, record: logging.LogRecord) -> str:
        """Returns one line. A value that JSON cannot encode becomes its `str`."""
        line = {
            "time": datetime.fromtimestamp(record.created, UTC)
            .isoformat(timespec="milliseconds")
            .replace("+00:00", "Z"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            "service": self._service,
            **_fields(record),
        }
        if record.exc_info:
            line["stack"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str, ensure_ascii=False)


class HumanFormatter(logging.Formatter):
    """Formats a record as `12:00:01.250 INFO  checkpoint  committed  task=… epoch=…`, with the stack below."""

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created).astimezone().strftime("%H:%M:%S.%f")[:-3]
        fields = " ".join(f"{name}={value}" for name, value in _fields(record).items())
        logger = record.name.removeprefix("tenure.").removeprefix("services.")
        line = f"{at} {record.levelname:<7} {logger}  {record.getMessage()}  {fields}".rstrip()
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    """Returns the fields of the log context, then the record's own, except names that every line has already."""
    fields = dict(_CONTEXT.get())
    if (tenant := current_tenant()) != DEFAULT_TENANT:
        fields["tenant"] = tenant
    if header := traceparent():
        fields["trace_id"] = header.split("-")[1]
    fields.update((name, value) for name, value in vars(record).items() if name not in _RECORD_ATTRIBUTES)
    return {name: _bounded(value) for name, value in fields.items() if name not in _RESERVED_FIELDS}


_RESERVED_FIELDS: Final = frozenset(("time", "level", "logger", "message", "stack"))


def _bounded(value: Any) -> Any:
    if isinstance(value, str) and len(value) > _LONGEST_VALUE:
        return f"{value[:_LONGEST_VALUE]}… ({len(value)} characters)"
    return value
