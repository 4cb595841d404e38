"""The values of arguments as the contract has them. A refusal names the argument."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from decimal import Decimal, InvalidOperation
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from tenure.domain.agents import read_reference
from tenure.domain.budget import MAX_NANO_USD, nano_usd_of
from tenure.domain.images import MAX_FILES_BYTES, problems_of_files
from tenure.domain.model_parameters import Effort
from tenure.domain.task import MOST_LIVE, FailurePolicy, InputFile, NoProgressPolicy, Priority, Source, TaskPolicy
from tenure.sdk.errors import invalid_argument, whole_texts
from tenure.v1 import task_pb2, workspace_pb2
from tenure.wire.common import EFFORTS, NO_PROGRESS, ON_FAILURE, PRIORITIES, SOURCES, duration, timestamp

T = TypeVar("T")
E = TypeVar("E", bound=Enum)
Money = Decimal | float | int | str
Seconds = timedelta | float | int


def of_type(argument: str, value: T, kind: type) -> T:
    """Returns the value of an argument. Raises InvalidRequest for a value of another type; None: it is not given."""
    if value is None or isinstance(value, kind):
        return value
    raise invalid_argument(argument, f"must be of type {kind.__name__}, not {type(value).__name__}: {value!r}")


def nano_usd(argument: str, amount: Money | None) -> int:
    """Returns an amount of US dollars in nano dollars; 0 for None. Refuses 0, which the contract takes for none."""
    return 0 if amount is None else _nano_usd(argument, amount, least=1)


def nano_usd_from_0(argument: str, amount: Money) -> int:
    """Returns an amount of US dollars in nano dollars. 0 is one: the bound of a range, or a quota."""
    return _nano_usd(argument, amount, least=0)


def _nano_usd(argument: str, amount: Money, *, least: int) -> int:
    try:
        nano = nano_usd_of(Decimal(str(amount)))
    except InvalidOperation:
        nano = None
    if nano is None or not least <= nano <= MAX_NANO_USD:
        bound = "above 0" if least else "of 0 or more"
        message = f"must be an amount of US dollars {bound} with at most 9 decimals, not {amount}"
        raise invalid_argument(argument, message, "write for example 0.5")
    return nano


def default_cap(_argument: str, given: bool) -> task_pb2.MoneyCap.ValueType:
    """Returns the origin of a cap that holds for calls with a price only."""
    return task_pb2.MONEY_CAP_DEFAULT if given else task_pb2.MONEY_CAP_UNSPECIFIED


def number(argument: str, value: int) -> int:
    """Returns the number. Refuses 0, which the contract takes for the default; the gateway refuses negative numbers."""
    if of_type(argument, value, int) == 0:
        raise invalid_argument(argument, f"must be 1 or more, not {value!r}", "omit it to have the default")
    return value


def whole(argument: str, value: int) -> int:
    """Returns the number. 0 is one."""
    return of_type(argument, value, int)


def real(argument: str, value: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise invalid_argument(argument, f"must be a number, not {value!r}")
    return float(value)


def effort(argument: str, given: Effort | str) -> task_pb2.Effort.ValueType:
    return EFFORTS.to_wire(_member(argument, Effort, given))


def names(argument: str, given: Iterable[str]) -> tuple[str, ...]:
    """Returns names. Refuses one string, whose characters would be taken for the names."""
    if isinstance(given, str):
        raise invalid_argument(argument, "must be a list of names, not one string", f"write [{given!r}]")
    return tuple(of_type(argument, given, Iterable))


def tools(argument: str, given: Iterable[str]) -> task_pb2.ToolAllowlist:
    """Returns an allowlist; an empty one allows no tools."""
    allowed = names(argument, given)
    with whole_texts({argument: allowed}):
        return task_pb2.ToolAllowlist(names=allowed)


def labels(argument: str, given: Mapping[str, str]) -> dict[str, str]:
    return dict(of_type(argument, given, Mapping))


def priority(argument: str, given: Priority | str) -> task_pb2.Priority.ValueType:
    return PRIORITIES.to_wire(_member(argument, Priority, given))


def _member(argument: str, kind: type[E], given: E | str) -> E:
    """Returns the member of an enum for the member or its name."""
    try:
        return kind[str(getattr(given, "name", given)).upper()]
    except KeyError:
        message = f"must be one of {', '.join(member.name for member in kind)}, not {given!r}"
        raise invalid_argument(argument, message) from None


def no_progress(argument: str, given: NoProgressPolicy | str) -> task_pb2.NoProgressPolicy.ValueType:
    return NO_PROGRESS.to_wire(_member(argument, NoProgressPolicy, given))


def on_failure(argument: str, given: FailurePolicy | str) -> task_pb2.FailurePolicy.ValueType:
    return ON_FAILURE.to_wire(_member(argument, FailurePolicy, given))


def source(argument: str, given: Source) -> task_pb2.Source:
    of_type(argument, given, Source)
    debounce = given.debounce_seconds
    with whole_texts({argument: (given.source_id, given.source_run_id)}):
        return task_pb2.Source(
            kind=SOURCES.to_wire(given.kind),
            source_id=given.source_id,
            source_run_id=given.source_run_id,
            exclusive=given.exclusive,
            at_most=_at_most(f"{argument}.at_most", given.at_most),
            debounce=None if debounce is None else duration_from_0(f"{argument}.debounce_seconds", debounce),
        )


def _at_most(argument: str, given: int) -> int:
    if not isinstance(given, int) or not 0 <= given <= MOST_LIVE:
        raise invalid_argument(argument, f"must be a whole number from 0 to {MOST_LIVE}, not {given!r}")
    return given


def files(argument: str, given: Iterable[InputFile | Path]) -> tuple[workspace_pb2.InputFile, ...]:
    """Returns the files of a submit. A Path is read, and has its own name in the workspace.

    A text is refused: in a request over HTTP it would name a file of the gateway.
    """
    read = tuple(_file(argument, one) for one in names(argument, given))  # type: ignore[arg-type]
    for index, problem in problems_of_files((file.path, len(file.content)) for file in read):
        raise invalid_argument(f"{argument}[{index}]", problem)
    return read


def _file(argument: str, given: InputFile | Path) -> workspace_pb2.InputFile:
    if isinstance(given, Path):
        try:
            with given.open("rb") as file:
                given = InputFile(given.name, file.read(MAX_FILES_BYTES + 1))
        except OSError as error:
            raise invalid_argument(argument, f"{given}: {error.strerror or error}") from error
    if not isinstance(given, InputFile):
        raise invalid_argument(argument, f"must have an InputFile or a Path, not {given!r}", "write Path('photo.png')")
    with whole_texts({argument: given.path}):
        return workspace_pb2.InputFile(path=given.path, content=given.content)


def policy(argument: str, given: TaskPolicy) -> task_pb2.TaskPolicy:
    from tenure.wire.task import policy_to_wire  # which takes a tenth of the start of a command

    return policy_to_wire(of_type(argument, given, TaskPolicy))


def seconds_of(time: Seconds) -> float:
    return time.total_seconds() if isinstance(time, timedelta) else float(time)


def timeout(argument: str, given: Seconds) -> Duration:
    """Returns a timeout. Refuses a time that is not above 0, because the contract takes 0 for the default."""
    message = _duration(given)
    if message is None or message.ToNanoseconds() <= 0:
        raise invalid_argument(argument, f"must be above 0 seconds, not {given}")
    return message


def duration_from_0(argument: str, given: Seconds) -> Duration:
    """Returns a duration. 0 is one: the bound of a range."""
    message = _duration(given)
    if message is None or message.ToNanoseconds() < 0:
        raise invalid_argument(argument, f"must be 0 seconds or more, not {given}")
    return message


def _duration(given: Seconds) -> Duration | None:
    try:
        return duration(seconds_of(given))
    except (TypeError, ValueError, OverflowError):
        return None


def start_time(argument: str, given: datetime) -> Timestamp:
    of_type(argument, given, datetime)
    if given.tzinfo is None:
        raise invalid_argument(argument, "must have a time zone", "write datetime.now(UTC) + timedelta(…)")
    return timestamp(given)


def json_text(argument: str, value: Any) -> str:
    """Returns a value as JSON text. Refuses a value that JSON does not have."""
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
        with whole_texts({argument: text}):
            text.encode()
    except (TypeError, ValueError) as error:
        raise invalid_argument(argument, f"must be a JSON value: {error}") from error
    return text


def json_object(argument: str, given: Mapping[str, Any]) -> str:
    return json_text(argument, of_type(argument, given, Mapping) and dict(given))


def agent_of_reference(argument: str, reference: str) -> tuple[str, int]:
    """Returns the name and the revision of `support@7`; 0 for `support`."""
    if not of_type(argument, reference, str):
        return "", 0
    try:
        return read_reference(reference)
    except ValueError as error:
        raise invalid_argument(argument, str(error)) from None
