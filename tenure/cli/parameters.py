"""The types of options: durations, labels, dollars, names, sources, replicas; and tasks by the prefix of their id."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal, InvalidOperation
from typing import Any, Final, TypeVar

import click

from tenure.client import Client
from tenure.domain.budget import MAX_NANO_USD, nano_usd_of
from tenure.domain.errors import InvalidRequest
from tenure.domain.task import Source
from tenure.sdk.task_filter import source_of
from tenure.sdk.task_ids import find_task_id
from tenure.server_packages import server_packages

F = TypeVar("F", bound=Callable[..., Any])

_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_PART: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
MAX_DURATION_SECONDS: Final = 36_500 * 86_400.0
"""100 years: more would leave the range of dates."""
MAX_REPLICAS: Final = 9
_SETTING: Final = re.compile(
    r"(?P<service>(?P<kind>gateway|coordinator|checkpoint|tools|models|worker)(-[1-9]\d*)?)"
    r"\.(?P<name>\w+)=(?P<value>.*)",
    re.DOTALL,
)
_OF_THE_STACK: Final = re.compile(
    r"_(LISTEN|(CHECKPOINT|COORDINATOR|TOOLS|MODELS)_ADDRESS(ES)?|POSTGRES_DSN(_FILE)?|ETCD_ENDPOINTS|SIGNING_KEY_FILE|"
    r"VERIFYING_KEYS_FILE)\Z"
)


class DurationType(click.ParamType[float]):
    """`90s`, `10m`, `1h30m`, `250ms`, `30d`; a number alone is seconds. `above_zero`: 0 is refused."""

    name = "duration"

    def __init__(self, *, above_zero: bool = False) -> None:
        self._above_zero = above_zero

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float):
            return value
        text = str(value).strip()
        with_unit = f"{text}s" if re.fullmatch(r"\d+(\.\d+)?", text) else text
        parts = _PART.findall(with_unit)
        if not parts or "".join(number + unit for number, unit in parts) != with_unit:
            self.fail(f"{text!r} is not a duration; write for example 90s, 10m or 1h30m", param, ctx)
        seconds = sum(float(number) * _UNITS[unit] for number, unit in parts)
        if seconds > MAX_DURATION_SECONDS:
            self.fail(f"{text!r} is longer than 100 years; give at most 36500d", param, ctx)
        if self._above_zero and not seconds:
            self.fail(f"{text!r} must be above 0; omit it to have the default", param, ctx)
        return seconds


class LaterType(click.ParamType[datetime]):
    """A later time: a duration from now such as `2h`, or a time such as `2026-11-30T08:00`, local or with a zone."""

    name = "duration or time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        if isinstance(value, datetime):
            return value
        now = datetime.now(UTC)
        try:
            moment = datetime.fromisoformat(str(value)).astimezone(UTC)
        except (ValueError, OverflowError):
            moment = now + timedelta(seconds=DURATION.convert(value, param, ctx))
        if moment <= now:
            self.fail(f"{value!r} is not in the future", param, ctx)
        return moment


class LabelType(click.ParamType[tuple[str, str]]):
    """`key=value`."""

    name = "label"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str]:
        if isinstance(value, tuple):
            return value
        key, equals, rest = str(value).partition("=")
        if not equals or not key:
            self.fail(f"{value!r} is not a label; write key=value", param, ctx)
        return key, rest


class MoneyType(click.ParamType[int]):
    """`0.50`, `$12`: dollars, as a whole number of nano USD."""

    name = "dollars"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        try:
            nano_usd = nano_usd_of(Decimal(str(value).strip().removeprefix("$")))
        except InvalidOperation:
            nano_usd = None
        if nano_usd is None or not 0 < nano_usd <= MAX_NANO_USD:
            self.fail(f"{value!r} is not an amount of dollars; write for example 0.50", param, ctx)
        return nano_usd


class JsonObjectType(click.ParamType[dict[str, Any]]):
    """`{"top_k": 40}`."""

    name = "json"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> dict[str, Any]:
        if isinstance(value, dict):
            return value
        try:
            read = json.loads(value)
        except (ValueError, RecursionError) as error:
            self.fail(f"{value!r} is not JSON: {error}", param, ctx)
        if not isinstance(read, dict):
            self.fail(f"{value!r} is not a JSON object", param, ctx)
        return read


class NamesType(click.ParamType[tuple[str, ...]]):
    """`a,b,c`."""

    name = "names"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, ...]:
        if isinstance(value, tuple):
            return value
        names = tuple(name.strip() for name in str(value).split(",") if name.strip())
        if not names:
            self.fail("give at least one name, or use --no-tools for none", param, ctx)
        return names


class EarlierType(click.ParamType[datetime]):
    """An earlier time: a duration before now such as `2h`, or a time such as `2026-11-30T08:00`, as in `LaterType`."""

    name = "duration or time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        if isinstance(value, datetime):
            return value
        try:
            return datetime.fromisoformat(str(value)).astimezone(UTC)
        except (ValueError, OverflowError):
            return datetime.now(UTC) - timedelta(seconds=DURATION.convert(value, param, ctx))


class SourceType(click.ParamType[Source]):
    """`scheduler`, `scheduler/nightly`, `scheduler/nightly/2026-11-23`: a kind of source, its id, a run of it."""

    name = "kind/id/run"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Source:
        if isinstance(value, Source):
            return value
        try:
            return source_of(str(value))
        except InvalidRequest as error:
            self.fail(error.violations[0].description, param, ctx)


class ReplicasType(click.ParamType[dict[str, int]]):
    """`coordinator=2,tools=3`, or `2` for two of every service."""

    name = "replicas"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> dict[str, int]:
        with server_packages("`tenure dev`", extra="dev"):  # only `tenure dev` needs it, and it is slow to import
            from devstack.options import REPLICATED

        if isinstance(value, dict):
            return value
        text = str(value).strip()
        pairs = ",".join(f"{kind}={text}" for kind in REPLICATED) if text.isdecimal() else text
        replicas: dict[str, int] = {}
        for part in pairs.split(","):
            kind, _, count = part.partition("=")
            if kind.strip() not in REPLICATED or not count.strip().isdecimal() or not 1 <= int(count) <= MAX_REPLICAS:
                self.fail(
                    f"{part!r} is not a number of replicas, 1 to {MAX_REPLICAS}; write 2, or coordinator=2,tools=3",
                    param,
                    ctx,
                )
            replicas[kind.strip()] = int(count)
        return replicas


class SettingType(click.ParamType[tuple[str, str, str]]):
    """`checkpoint.SWEEP_INTERVAL_SECONDS=5`: a service or one of its replicas, a setting and its value.

    Returns the name of the service, the environment variable and the value. The service checks both at its start.
    """

    name = "setting"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str, str]:
        if isinstance(value, tuple):
            return value
        match = _SETTING.fullmatch(str(value).strip())
        if match is None:
            self.fail(f"{value!r} is not SERVICE.NAME=VALUE; write for example worker.SLOTS=4", param, ctx)
        service, kind, setting = match["service"], match["kind"], match["name"].upper()
        variable = setting if setting.startswith("TENURE_") else f"TENURE_{kind.upper()}_{setting}"
        if _OF_THE_STACK.search(variable):
            self.fail(f"the stack sets {variable} itself; see --etcd, --postgres and --replicas", param, ctx)
        return service, variable, match["value"]


DURATION: Final = DurationType()
TIMEOUT: Final = DurationType(above_zero=True)
"""Of a task: the contract takes 0 for the default."""
LATER: Final = LaterType()
EARLIER: Final = EarlierType()
LABEL: Final = LabelType()
JSON_OBJECT: Final = JsonObjectType()
NAMES: Final = NamesType()
DOLLARS: Final = MoneyType()
REPLICAS: Final = ReplicasType()
SETTING: Final = SettingType()
SOURCE: Final = SourceType()

task_argument = click.argument("task", metavar="TASK")


async def find_task(client: Client, id_or_prefix: str) -> str:
    """Returns the id of the task that `id_or_prefix` is or begins. Raises NotFound or InvalidRequest."""
    return await find_task_id(client.tasks.ListTasks, id_or_prefix)
