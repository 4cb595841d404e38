"""The types of options: durations, labels, dollars, names, sources, replicas; and tasks by the prefix of their id."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from tenure.client import Client
from tenure.domain.budget import MAX_NANO_USD, nano_usd_of
from tenure.domain.errors import InvalidRequest
from tenure.domain.task import Source
from tenure.domain.texts import span_seconds
from tenure.sdk.task_filter import source_of
from tenure.sdk.task_ids import find_task_id
from tenure.server_packages import server_packages

T = TypeVar("T")

MAX_DURATION_SECONDS: Final = 36_500 * 86_400.0
"""100 years: more would leave the range of dates."""
MAX_REPLICAS: Final = 9
_SETTING: Final = re.compile(
    r"(?P<service>(?P<kind>gateway|coordinator|checkpoint|tools|models|worker)(-[1-9]\d*)?)"
    r"\.(?P<name>\w+)=(?P<value>.*)",
    re.DOTALL,
)
_OF_THE_STACK: Final = re.compile(
    r"_(LISTEN|(CHECKPOINT|COORDINATOR|TOOLS|MODELS)_ADDRESS|POSTGRES_DSN(_FILE)?|ETCD_ENDPOINTS|SIGNING_KEY_FILE|"
    r"VERIFYING_KEYS_FILE)\Z"
)


class Typed(click.ParamType[T]):
    """The type of an option that `read` makes of its text. `read` raises ValueError, which says what is wrong."""

    def __init__(self, name: str, read: Callable[[str], T]) -> None:
        self.name, self._read = name, read

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> T:
        if not isinstance(value, str):  # a default
            converted: T = value
            return converted
        try:
            return self._read(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


def read_duration(text: str) -> float:
    """Reads `90s`, `10m`, `1h30m`, `250ms`, `30d`; a number alone is seconds."""
    text = text.strip()
    seconds = span_seconds(f"{text}s" if re.fullmatch(r"\d+(\.\d+)?", text) else text)
    if seconds is None:
        raise ValueError(f"{text!r} is not a duration; write for example 90s, 10m or 1h30m")
    if seconds > MAX_DURATION_SECONDS:
        raise ValueError(f"{text!r} is longer than 100 years; give at most 36500d")
    return seconds


def _above_zero(text: str) -> float:
    seconds = read_duration(text)
    if not seconds:
        raise ValueError(f"{text.strip()!r} must be above 0; omit it to have the default")
    return seconds


def _later(text: str) -> datetime:
    """Reads a duration from now such as `2h`, or a time such as `2026-11-30T08:00`, local or with a zone."""
    now = datetime.now(UTC)
    try:
        moment = datetime.fromisoformat(text).astimezone(UTC)
    except (ValueError, OverflowError):
        moment = now + timedelta(seconds=read_duration(text))
    if moment <= now:
        raise ValueError(f"{text!r} is not in the future")
    return moment


def _earlier(text: str) -> datetime:
    """Reads a duration before now such as `2h`, or a time such as `2026-11-30T08:00`, as `_later` does."""
    try:
        return datetime.fromisoformat(text).astimezone(UTC)
    except (ValueError, OverflowError):
        return datetime.now(UTC) - timedelta(seconds=read_duration(text))


def _label(text: str) -> tuple[str, str]:
    key, equals, rest = text.partition("=")
    if not equals or not key:
        raise ValueError(f"{text!r} is not a label; write key=value")
    return key, rest


def _dollars(text: str) -> int:
    """Reads `0.50` or `$12` as a whole number of nano USD, above 0."""
    nano_usd = _dollars_from_0(text)
    if not nano_usd:
        raise ValueError(f"{text!r} must be above 0 dollars; write for example 0.50")
    return nano_usd


def _dollars_from_0(text: str) -> int:
    try:
        nano_usd = nano_usd_of(Decimal(text.strip().removeprefix("$")))
    except InvalidOperation:
        nano_usd = None
    if nano_usd is None or not 0 <= nano_usd <= MAX_NANO_USD:
        raise ValueError(f"{text!r} is not an amount of dollars; write for example 0.50")
    return nano_usd


def _json_object(text: str) -> dict[str, Any]:
    try:
        read = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{text!r} is not JSON: {error}") from None
    if not isinstance(read, dict):
        raise ValueError(f"{text!r} is not a JSON object")  # noqa: TRY004  click shows ValueError
    return read


def _names(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    if not names:
        raise ValueError("give at least one name, or use --no-tools for none")
    return names


def _source(text: str) -> Source:
    """Reads `scheduler`, `scheduler/nightly`, `scheduler/nightly/2026-11-23`: a kind of source, its id, a run of it."""
    try:
        return source_of(text)
    except InvalidRequest as error:
        raise ValueError(error.violations[0].description) from None


def _replicas(text: str) -> dict[str, int]:
    """Reads `coordinator=2,tools=3`, or `2` for two of every service."""
    with server_packages("`tenure dev`", extra="dev"):  # only `tenure dev` needs it, and it is slow to import
        from devstack.options import REPLICATED

    text = text.strip()
    pairs = ",".join(f"{kind}={text}" for kind in REPLICATED) if text.isdecimal() else text
    replicas: dict[str, int] = {}
    for part in pairs.split(","):
        kind, _, count = part.partition("=")
        if kind.strip() not in REPLICATED or not count.strip().isdecimal() or not 1 <= int(count) <= MAX_REPLICAS:
            raise ValueError(
                f"{part!r} is not a number of replicas, 1 to {MAX_REPLICAS}; write 2, or coordinator=2,tools=3"
            )
        replicas[kind.strip()] = int(count)
    return replicas


def _setting(text: str) -> tuple[str, str, str]:
    """Reads `checkpoint.SWEEP_INTERVAL_SECONDS=5`: a service or one of its replicas, a setting and its value.

    Returns the name of the service, the environment variable and the value. The service checks both at its start.
    """
    match = _SETTING.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not SERVICE.NAME=VALUE; write for example worker.SLOTS=4")
    service, kind, setting = match["service"], match["kind"], match["name"].upper()
    variable = setting if setting.startswith("TENURE_") else f"TENURE_{kind.upper()}_{setting}"
    if _OF_THE_STACK.search(variable):
        raise ValueError(f"the stack sets {variable} itself; see --port, --etcd, --postgres and --replicas")
    return service, variable, match["value"]


DURATION: Final = Typed("duration", read_duration)
TIMEOUT: Final = Typed("duration", _above_zero)
"""Of a task: the contract takes 0 for the default."""
LATER: Final = Typed("duration or time", _later)
EARLIER: Final = Typed("duration or time", _earlier)
LABEL: Final = Typed("label", _label)
JSON_OBJECT: Final = Typed("json", _json_object)
NAMES: Final = Typed("names", _names)
FILE: Final = click.Path(exists=True, dir_okay=False, path_type=Path)
MESSAGE_FILES: Final[Mapping[str, Any]] = {
    "type": FILE,
    "multiple": True,
    "help": "Put this file into a new directory of the workspace, and show the agent an image. May be repeated.",
}
DOLLARS: Final = Typed("dollars", _dollars)
DOLLARS_FROM_0: Final = Typed("dollars", _dollars_from_0)
"""The bound of a range."""
REPLICAS: Final = Typed("replicas", _replicas)
SETTING: Final = Typed("setting", _setting)
SOURCE: Final = Typed("kind/id/run", _source)

task_argument = click.argument("task", metavar="TASK")


async def find_task(client: Client, id_or_prefix: str) -> str:
    """Returns the id of the task that `id_or_prefix` is or begins. Raises NotFound or InvalidRequest."""
    return await find_task_id(client.tasks.ListTasks, id_or_prefix)
