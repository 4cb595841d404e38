"""The options that describe a task: of `tenure submit`, and of `tenure schedules create` and `update`.

Most come from tenure/sdk/submit_options.py. The others, which only the command has, say here which field they set.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, Final, NamedTuple

import click
from google.protobuf import json_format

from tenure.cli.group import SectionOption
from tenure.cli.parameters import DOLLARS, FILE, JSON_OBJECT, LABEL, NAMES, TIMEOUT, Typed, read_duration
from tenure.cli.tasks import RESULT_SCHEMA
from tenure.domain.budget import NANO_USD
from tenure.domain.model_parameters import Effort
from tenure.domain.task import FailurePolicy, InputFile, NoProgressPolicy, Priority
from tenure.domain.timeouts import Phase, TimeoutAction
from tenure.sdk.option_values import Money, Seconds
from tenure.sdk.submit_options import FORK_OPTIONS, OPTIONS, Option, argument_of, path_in_fork
from tenure.sdk.submit_request import is_given
from tenure.v1 import rule_pb2, task_pb2
from tenure.wire.common import TIMEOUT_ACTIONS, duration

# Types of options: start times and phase timeouts.

_PHASES = {phase.field.replace("_", "-"): phase for phase in Phase}
_ACTIONS = {action.value.lower().replace("_", "-"): action for action in TimeoutAction}

MAX_ESCALATIONS_CHARACTERS: Final = 65_536


def _moment(text: str) -> datetime:
    """Reads `2026-11-23T07:00` in the time zone of this machine, or with a zone: `2026-11-23T07:00+01:00`, `…Z`."""
    try:
        return datetime.fromisoformat(text.strip()).astimezone(UTC)
    except (ValueError, OverflowError, OSError):
        raise ValueError(f"{text!r} is not a time; write for example 2026-11-23T07:00 or 2026-11-23T07:00Z") from None


def _escalations(path: str) -> task_pb2.WaitEscalations:
    """Reads a file of JSON: {"person": [{"after": "3600s", "assignee": "lead"}], "event": []}."""
    try:
        with Path(path).open(encoding="utf-8") as file:
            text = file.read(MAX_ESCALATIONS_CHARACTERS + 1)
        if len(text) <= MAX_ESCALATIONS_CHARACTERS:
            return json_format.Parse(text, task_pb2.WaitEscalations())
    except (OSError, ValueError, json_format.ParseError) as error:
        raise ValueError(f"{path}: {error}") from None
    raise ValueError(f"{path}: more than {MAX_ESCALATIONS_CHARACTERS} characters")


def _phase_timeout(typed: str) -> tuple[str, task_pb2.PhaseTimeout]:
    """Reads `queued=10m`, `queued=10m:retry`, `tool-call=:fail`: a phase with a timeout, an action or both."""
    name, _, text = typed.partition("=")
    after, _, action = text.partition(":")
    if name not in _PHASES:
        raise ValueError(f"{name!r} is not a phase; the phases are {', '.join(_PHASES)}")
    if (action and action not in _ACTIONS) or not (after or action):
        raise ValueError(
            f"{text!r} is not a timeout; write {name}=DURATION or {name}=DURATION:ACTION; the actions are "
            f"{', '.join(_ACTIONS)}"
        )
    timeout = task_pb2.PhaseTimeout(after=duration(read_duration(after)) if after else None)
    if action:
        timeout.action = TIMEOUT_ACTIONS.to_wire(_ACTIONS[action])
    return _PHASES[name].field, timeout


MOMENT: Final = Typed("time", _moment)
ESCALATIONS: Final = Typed("file", _escalations)
PHASE_TIMEOUT: Final = Typed("phase=duration:action", _phase_timeout)

IN_DOUBT: Final = {
    "wait": task_pb2.IN_DOUBT_POLICY_WAIT_FOR_PERSON,
    "tell": task_pb2.IN_DOUBT_POLICY_TELL_MODEL,
}
ON_BUDGET: Final = {
    "end": task_pb2.BUDGET_POLICY_END,
    "ask": task_pb2.BUDGET_POLICY_ASK,
}
LEASE_LOST: Final = {
    "resume": task_pb2.LEASE_LOST_POLICY_RESUME,
    "time-out": task_pb2.LEASE_LOST_POLICY_TIME_OUT,
}


def _same(value: Any) -> Any:
    return value


_SECTIONS: Final = {
    "control": "Work",
    "files": "Work",
    "request_id": "Work",
    "agent.loop": "Work",
    "result_schema_json": "Result",
    "policy.max_result_corrections": "Result",
    "limits": "Limits",
    "policy.on_budget": "Limits",
    "policy.timeouts": "Limits",
    "agent.system": "Agent",
    "agent.tools": "Agent",
    "agent.approve_tools": "Agent",
    "agent": "Model",
    "queue": "Queue",
    "priority": "Queue",
    "labels": "Queue",
    "start_time": "Queue",
    "policy": "Failures and waits",
}
"""The sections of the help by what their options set, in their order; the first that fits counts."""


class TaskOption(SectionOption):
    """An option that describes a task. `path`: of the field of TaskSpec that it sets. `to_wire`: returns its value
    there. `subject`: what its place in the help follows from; "": the path.
    """

    def __init__(
        self,
        names: list[str],
        *,
        path: str,
        to_wire: Callable[[Any], Any] = _same,
        subject: str = "",
        **settings: Any,
    ) -> None:
        subject = subject or path
        place, section = next((n, _SECTIONS[one]) for n, one in enumerate(_SECTIONS) if subject.startswith(one))
        super().__init__(names, section=section, **settings)
        self.path, self.to_wire, self.place = path, to_wire, place

    def is_in(self, given: Mapping[str, Any]) -> bool:
        """Whether the option is given: 0 is a value, and no value of an option that may be repeated is none."""
        value = given.get(self.name or "")
        return is_given(value) and value != ()


# The options of the client.


class _Kind(NamedTuple):
    """How the command takes options of one type. `form`: a sentence for their help; `value`: what the client takes."""

    settings: dict[str, Any]
    form: str = ""
    value: Callable[[Any], Any] = _same


_NAMES: Final = _Kind({"type": NAMES}, " Written a,b,c.")
_NUMBER: Final = _Kind({})
_KINDS: Final[dict[Any, _Kind]] = {
    str: _Kind({"default": ""}),
    bool: _Kind({"is_flag": True}),
    int | None: _NUMBER,
    float | None: _Kind({"type": click.FLOAT}),
    Effort | str | None: _Kind({"type": click.Choice([effort.name.lower() for effort in Effort])}),
    Mapping[str, Any] | None: _Kind({"type": JSON_OBJECT}, """ For example '{"top_k": 40}'."""),
    Iterable[str]: _NAMES,
    Iterable[str] | None: _NAMES,
    Money | None: _Kind({"type": DOLLARS}, " For example 0.50.", lambda nano: Decimal(nano) / NANO_USD),
    Seconds | None: _Kind({"type": TIMEOUT}, " For example 10m."),
    datetime | None: _Kind({"type": MOMENT}, " For example 2026-11-23T07:00."),
    FailurePolicy | str | None: _Kind({"type": click.Choice([policy.lower() for policy in FailurePolicy])}),
    NoProgressPolicy | str | None: _Kind({"type": click.Choice([policy.lower() for policy in NoProgressPolicy])}),
    Priority | str | None: _Kind({"type": click.Choice([tier.name.lower() for tier in Priority])}),
    Mapping[str, str] | None: _Kind({"type": LABEL, "multiple": True}, " Written key=value; may be repeated.", dict),
    Iterable[InputFile | Path] | None: _Kind({"type": FILE, "multiple": True}, " May be repeated."),
}


def _of_the_client() -> Iterator[TaskOption]:
    for name, (hint, option) in OPTIONS.items():
        if option.flag is not None:
            yield _made(name, _KINDS[hint], option)


def _of_a_fork() -> Iterator[TaskOption]:
    for name in FORK_OPTIONS:
        hint, option = OPTIONS[name]
        if option.flag is not None:
            kind = _Kind({}) if hint is str else _KINDS[hint]  # an empty text is a value
            yield _made(name, kind, option, path_in_fork(option))


def _made(name: str, kind: _Kind, option: Option, path: str = "") -> TaskOption:
    flag = option.flag or f"--{name.replace('_', '-')}"
    settings = {**kind.settings, "type": _range(option.path)} if kind is _NUMBER else kind.settings
    return TaskOption(
        [flag, name],
        path=path or option.path,
        subject=option.path or name,
        to_wire=lambda value: option.to_wire(flag, kind.value(value)),
        help=f"{option.text[0].upper()}{option.text[1:]}.{kind.form}",
        **settings,
    )


def _range(path: str) -> click.IntRange:
    """Returns the numbers that a field of TaskSpec takes: from 0 if an absent number is another one, and as far as the
    contract states.
    """
    *above, name = path.split(".")
    message: Any = task_pb2.TaskSpec.DESCRIPTOR
    for part in above:
        message = message.fields_by_name[part].message_type
    field = message.fields_by_name[name]
    return click.IntRange(0 if field.has_presence else 1, field.GetOptions().Extensions[rule_pb2.rule].most or None)


# The options that only the command has.

_ONLY_HERE: Final = (
    TaskOption(
        ["--function"],
        path="control.function",
        metavar="NAME[@REVISION]",
        default="",
        help="Run this control function instead of an agent.",
    ),
    TaskOption(
        ["--agent"], path="control.function", metavar="NAME[@REVISION]", default="", help="Give GOAL to this agent."
    ),
    TaskOption(
        ["--input", "given"],
        path="control.input_json",
        metavar="JSON",
        default="",
        help="The input of the function or the agent; `-` reads it from standard input.",
    ),
    TaskOption(
        ["--no-tools"],
        path="agent.tools",
        to_wire=lambda _: task_pb2.ToolAllowlist(),
        is_flag=True,
        help="Give the agent no tools.",
    ),
    TaskOption(
        ["--loop"],
        path="agent.loop",
        default="",
        help="The loop that drives the task; a worker must have it. Default: messages.",
    ),
    TaskOption(
        ["--phase-timeout", "phase_timeouts"],
        path="policy.timeouts",
        to_wire=lambda phases: task_pb2.Timeouts(**dict(phases)),
        type=PHASE_TIMEOUT,
        multiple=True,
        help="The limit of a phase and the action when it is passed, for example queued=10m:retry; may be repeated.",
    ),
    TaskOption(
        ["--escalations"],
        path="policy.escalations",
        type=ESCALATIONS,
        help="A JSON file with the steps of waits without an answer: see docs/waits.md. Default: none.",
    ),
    TaskOption(
        ["--approver", "approvers"],
        path="policy.approvers",
        multiple=True,
        metavar="WHO",
        help="Who alone may answer the waits of the task: group:NAME or a member as in `tenure approvers set`; may be"
        " repeated. Default: everyone with the permission APPROVE.",
    ),
    TaskOption(
        ["--retries"],
        path="policy.retry",
        to_wire=lambda retries: task_pb2.RetryPolicy(max_attempts=retries + 1),
        type=click.IntRange(0, 99),
        help="How often the task is retried when its function fails or a phase is late. Default: 3.",
    ),
    TaskOption(
        ["--result-schema"],
        path="result_schema_json",
        **RESULT_SCHEMA,
        help="A file with the JSON Schema of the result. Default: any text.",
    ),
    TaskOption(
        ["--result-corrections"],
        path="policy.max_result_corrections",
        type=click.IntRange(0, 20),
        help="How often the agent may correct a result that does not fit the schema. Default: 3.",
    ),
    TaskOption(
        ["--on-in-doubt"],
        path="policy.on_in_doubt",
        to_wire=IN_DOUBT.__getitem__,
        type=click.Choice(list(IN_DOUBT)),
        default="wait",
        help="When a tool call is in doubt: wait for a person, or tell the model.",
    ),
    TaskOption(
        ["--on-budget"],
        path="policy.on_budget",
        to_wire=ON_BUDGET.__getitem__,
        type=click.Choice(list(ON_BUDGET)),
        default="end",
        help="At a cap in tokens or money: end the task, or ask a person for more (tenure waits).",
    ),
    TaskOption(
        ["--on-lease-lost"],
        path="policy.on_lease_lost",
        to_wire=LEASE_LOST.__getitem__,
        type=click.Choice(list(LEASE_LOST)),
        default="resume",
        help="When the claim is lost: another worker resumes the task, or it ends as TIMED_OUT.",
    ),
)

TASK_OPTIONS: Final = tuple(sorted((*_of_the_client(), *_ONLY_HERE), key=lambda option: option.place))
FORK_TASK_OPTIONS: Final = tuple(sorted(_of_a_fork(), key=lambda option: option.place))
"""Those in which a fork differs, with their fields in ForkOverrides."""
SCHEDULE_OPTIONS: Final = tuple(option for option in TASK_OPTIONS if option.path not in {"", "start_time"})
"""A schedule sets when its tasks start, and repeats no submit."""


def typed_names(given: Mapping[str, Any], goal: str = "GOAL") -> Callable[[str], str]:
    """Returns the function that returns what was typed for a field of the contract: `--max-cost`.

    `given`: the options of the command line, which go before others that set the same field.
    """
    known = sorted(TASK_OPTIONS, key=lambda option: not option.is_in(given))
    names = {option.path: option.opts[0] for option in reversed(known)} | {"goal": goal}
    names["agent_pin"] = names["control.function"]
    names["source"] = "--conversation" if given.get("conversation") else "--source"
    of_request = {option.name or "": option.opts[0] for option in TASK_OPTIONS if not option.path}

    def typed(field: str) -> str:
        name = re.split(r"[.\[]", field, maxsplit=1)[0]
        return of_request[name] + field.removeprefix(name) if name in of_request else argument_of(field, names)

    return typed
