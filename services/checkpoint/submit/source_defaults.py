"""The defaults of a source's tasks, for fields that a submit leaves unset: `defaults.<source>` in the installation's
file.

    [defaults.conversation]
    priority = "PRIORITY_HIGH"
    limits = { timeout = "3600s" }
    policy.lease_ttl = "5s"
    policy.timeouts.start = { after = "5s" }
    policy.retry = { max_attempts = 2 }

A table is a TaskSpec as in the contract, of which `limits`, `policy` and `priority` can be set. The service fills the
defaults in when it creates a task, so that the task shows its effective values; a later change of the file changes no
task. The same file has the default quotas of tenants: see `read_quotas` in `tenants/rows.py`.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

from google.protobuf import json_format
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message

from services.checkpoint.tenants.rows import QUOTA_TABLE, read_quotas
from tenure.domain.errors import InvalidRequest
from tenure.domain.quotas import Quota, QuotaKind
from tenure.domain.task import SourceKind
from tenure.runtime.settings import ConfigurationError
from tenure.v1 import checkpoint_service_pb2, task_pb2
from tenure.validators import validate
from tenure.wire.common import SOURCES, seconds

TABLE: Final = "defaults"
SETTABLE: Final = frozenset({"limits", "policy", "priority"})


class SourceDefaults:
    """The defaults by source. A source without any has the defaults of the contract."""

    def __init__(
        self,
        by_source: Mapping[SourceKind, task_pb2.TaskSpec] | None = None,
        tenant_quotas: Mapping[QuotaKind, Quota | None] | None = None,
    ) -> None:
        self._by_source = dict(by_source or {})
        self.tenant_quotas = dict(tenant_quotas or {})

    def fill(self, spec: task_pb2.TaskSpec) -> task_pb2.TaskSpec:
        """Returns the spec with its unset fields filled in, or the spec itself when the source has no defaults."""
        defaults = self._by_source.get(SOURCES.to_domain(spec.source.kind))
        if defaults is None:
            return spec
        filled = task_pb2.TaskSpec()
        filled.CopyFrom(spec)
        fill_unset(filled, defaults)
        if spec.limits.max_nano_usd:  # what a submit says of its cap goes before what the source says
            filled.limits.no_money_cap = False
        elif spec.limits.no_money_cap:
            filled.limits.max_nano_usd = 0
        _keep_wait(filled.policy.timeouts, spec.policy.timeouts)
        return filled


def _keep_wait(filled: task_pb2.Timeouts, submitted: task_pb2.Timeouts) -> None:
    """Removes defaults of waits for a person and for an event where the submit sets the timeout of every wait."""
    for name in ("wait_person", "wait_event"):
        own = getattr(submitted, name)
        if seconds(submitted.wait.after) and not seconds(own.after):
            getattr(filled, name).ClearField("after")
        if submitted.wait.action and not own.action:
            getattr(filled, name).ClearField("action")


def load_source_defaults(path: Path | None) -> SourceDefaults:
    """Reads the file. Raises ConfigurationError with all problems of the file."""
    if path is None:
        return SourceDefaults()
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"), parse_float=Decimal)
    except (OSError, ValueError) as error:
        raise ConfigurationError([f"{path}: {error}"]) from None
    return read_source_defaults(document, str(path))


def read_source_defaults(document: Mapping[str, Any], name: str) -> SourceDefaults:
    """Reads a file's content; `name` appears in error messages. Raises ConfigurationError with all problems."""
    tables_known = f"[{TABLE}.<source>] and [{QUOTA_TABLE}]"
    problems = [
        f"{name}: unknown key {key!r}, the file may have {tables_known}"
        for key in document
        if key not in (TABLE, QUOTA_TABLE)
    ]
    by_source: dict[SourceKind, task_pb2.TaskSpec] = {}
    tables = document.get(TABLE, {})
    if not isinstance(tables, dict):
        raise ConfigurationError([f"{name}: {TABLE} must be tables, [{TABLE}.<source>]"])
    for source, table in tables.items():
        result = list(_problems(source, table))
        problems += [f"{name}: {TABLE}.{source}: {problem}" for problem in result]
        if not result:
            by_source[SourceKind(source.upper())] = json_format.ParseDict(table, task_pb2.TaskSpec())
    quotas, wrong = read_quotas(document.get(QUOTA_TABLE, {}))
    problems += [f"{name}: {QUOTA_TABLE}: {problem}" for problem in wrong]
    if problems:
        raise ConfigurationError(problems)
    return SourceDefaults(by_source, quotas)


def _problems(source: str, table: Any) -> Iterator[str]:
    names = [kind.lower() for kind in SourceKind]
    if source not in names:
        yield f"is not a source: use one of {', '.join(names)}"
        return
    if not isinstance(table, dict):
        yield "must be a table"
        return
    if unknown := sorted(set(table) - SETTABLE):
        yield f"{', '.join(unknown)} cannot be set here, only {', '.join(sorted(SETTABLE))}"
        return
    try:
        spec = json_format.ParseDict(table, task_pb2.TaskSpec(goal="any"))
    except (json_format.ParseError, TypeError) as error:
        yield str(error)
        return
    try:
        validate(checkpoint_service_pb2.CreateTaskRequest(request_id="any", spec=spec))
    except InvalidRequest as refusal:
        yield from (f"{one.field.removeprefix('spec.')}: {one.description}" for one in refusal.violations)


def fill_unset(target: Message, defaults: Message) -> None:
    """Fills unset fields one by one. A duration of 0 and an empty list count as unset."""
    for field, value in defaults.ListFields():
        if field.is_repeated:
            if not getattr(target, field.name):
                getattr(target, field.name).extend(value)
        elif field.type != FieldDescriptor.TYPE_MESSAGE:
            is_set = target.HasField(field.name) if field.has_presence else bool(getattr(target, field.name))
            if not is_set:
                setattr(target, field.name, value)
        elif isinstance(value, Duration):
            if not getattr(target, field.name).ToNanoseconds():
                getattr(target, field.name).CopyFrom(value)
        else:
            fill_unset(getattr(target, field.name), value)
            getattr(target, field.name).SetInParent()
