"""What a submit takes: the one description of its options, with their types, texts and places in the request.

From it come the arguments of `Client.submit`, `submit_function` and `register_agent`, the fields of a submit over HTTP
with their OpenAPI text, the options of `tenure submit` and `tenure schedules`, those of forks, and the names in
refusals. A new option is one line in the class of the calls that take it, and a field in protos/tenure/v1/task.proto.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Final, TypedDict, TypeVar, get_args, get_origin, get_type_hints

from tenure.domain.model_parameters import Effort
from tenure.domain.task import FailurePolicy, InputFile, NoProgressPolicy, Priority, Source, TaskPolicy
from tenure.sdk import option_values as values
from tenure.sdk.option_values import Money, Seconds

F = TypeVar("F", bound=Callable[..., Any])


def _as_it_is(_argument: str, value: Any) -> Any:
    return value


@dataclass(frozen=True, slots=True)
class Option:
    """An option of a submit.

    `text`: for people. `path`: of the field of TaskSpec that it sets; "": that of the request with its name. `to_wire`:
    returns the field's value for an argument and its value, or raises InvalidRequest. `flag`: of the command, where it
    differs from the name; None: the command has other options for it.
    """

    text: str
    path: str
    to_wire: Callable[[str, Any], Any] = _as_it_is
    flag: str | None = ""


class CommonOptions(TypedDict, total=False):
    """Of every task, and of a registered agent's tasks."""

    model: Annotated[str, Option("the id of the model", "agent.model")]
    max_cost: Annotated[
        Money | None,
        Option(
            "the cap for all model calls of the task and its sub-agents, in US dollars",
            "limits.max_nano_usd",
            values.nano_usd,
        ),
    ]
    max_tokens: Annotated[int | None, Option("the same cap in tokens", "limits.max_tokens", values.number)]
    max_steps: Annotated[
        int | None,
        Option("the most steps: model calls with their tool calls", "limits.max_steps", values.number),
    ]
    timeout: Annotated[
        Seconds | None,
        Option("from the submit or the start time to the end; at most 24 hours", "limits.timeout", values.timeout),
    ]
    policy: Annotated[
        TaskPolicy | None,
        Option("reactions to failures, calls in doubt, caps and timeouts", "policy", values.policy, flag=None),
    ]
    on_no_progress: Annotated[
        NoProgressPolicy | str | None,
        Option(
            "when steps repeat the same calls with the same outcomes, although the model read a note about it: END the "
            "task, ASK a person, only TELL the model, or IGNORE it; END by default",
            "policy.on_no_progress",
            values.no_progress,
        ),
    ]

    on_failure: Annotated[
        FailurePolicy | str | None,
        Option(
            "when the task ends without success: KEEP its effects, or UNDO them by the compensations of its tools; "
            "KEEP by default",
            "policy.on_failure",
            values.on_failure,
        ),
    ]


class AgentOptions(CommonOptions, total=False):
    """Of an agent without code: `Client.register_agent`."""

    system: Annotated[str, Option("the system prompt; at most 256 KiB", "agent.system")]
    tools: Annotated[
        Iterable[str] | None,
        Option("the tools that the agent may use; omitted: all of the tenant's", "agent.tools", values.tools),
    ]
    approve_tools: Annotated[
        Iterable[str],
        Option("tools whose calls wait for a person's approval", "agent.approve_tools", values.names),
    ]
    max_output_tokens: Annotated[
        int | None,
        Option("the most output tokens of one model call; at most 64,000", "agent.max_output_tokens", values.number),
    ]
    temperature: Annotated[
        float | None, Option("the randomness of the answers, 0 to 2", "agent.parameters.temperature", values.real)
    ]
    top_p: Annotated[
        float | None,
        Option("the share of the most probable tokens to choose from, 0 to 1", "agent.parameters.top_p", values.real),
    ]
    effort: Annotated[
        Effort | str | None,
        Option(
            "how much the model thinks: NONE, MINIMAL, LOW, MEDIUM, HIGH, XHIGH or MAX",
            "agent.parameters.effort",
            values.effort,
        ),
    ]
    thinking_tokens: Annotated[
        int | None,
        Option(
            "instead of an effort, for models that take a number: the most tokens of thoughts in one answer",
            "agent.parameters.thinking_tokens",
            values.number,
        ),
    ]
    tool_choice: Annotated[
        str,
        Option(
            "auto, none, any (the first answer calls a tool), or the name of the tool that the first answer calls",
            "agent.parameters.tool_choice",
        ),
    ]
    seed: Annotated[
        int | None,
        Option("makes answers repeatable as far as the provider can", "agent.parameters.seed", values.whole),
    ]
    extra_body: Annotated[
        Mapping[str, Any] | None,
        Option(
            "further members of the request to the model, a JSON object, such as top_k; docs/models.md lists them",
            "agent.parameters.extra_body_json",
            values.json_object,
        ),
    ]


class FunctionOptions(CommonOptions, total=False):
    """Of one task: `Client.submit_function`."""

    allow_unpriced: Annotated[
        bool,
        Option(
            "with max_cost: make calls without a known price too, for which the cap does not hold",
            "limits.money_cap",
            values.default_cap,
        ),
    ]
    no_max_cost: Annotated[bool, Option("no cap in dollars, not even the default one", "limits.no_money_cap")]
    start_at: Annotated[
        datetime | None, Option("the earliest start; at most 366 days ahead", "start_time", values.start_time)
    ]
    queue: Annotated[str, Option("the queue; only its workers take the task", "queue")]
    priority: Annotated[
        Priority | str | None, Option("HIGH, NORMAL or LOW; a higher tier is served first", "priority", values.priority)
    ]
    labels: Annotated[
        Mapping[str, str] | None,
        Option("your own labels, at most 32, by which lists find the task", "labels", values.labels, flag="--label"),
    ]
    source: Annotated[
        Source | None,
        Option(
            "who submitted it, for example a conversation; a run of a source is one task",
            "source",
            values.source,
            flag=None,
        ),
    ]
    files: Annotated[
        Iterable[InputFile | Path] | None,
        Option(
            "files for the task's workspace, at most 16 and 3 MB together; models that see images are shown those "
            "among them",
            "",
            values.files,
            flag="--file",
        ),
    ]
    request_id: Annotated[
        str, Option("makes a repeat of the submit safe, 1 to 128 characters: a repeat returns the same task", "")
    ]


class SubmitOptions(AgentOptions, FunctionOptions, total=False):
    """Of `Client.submit`."""


@cache
def options_of(kind: Any) -> dict[str, tuple[Any, Option]]:
    """Returns the type and the description of each option of one of the classes above, by name."""
    declared = get_type_hints(kind, include_extras=True)
    return {name: (get_args(each)[0], get_args(each)[1]) for name, each in declared.items()}


def default_of(hint: Any) -> Any:
    """Returns what an option of this type is when it is not given: the installation has a default for it."""
    if hint is str:
        return ""
    if hint is bool:
        return False
    return () if get_origin(hint) is Iterable else None


OPTIONS: Final = options_of(SubmitOptions)
PARAMETERS: Final = tuple(name for name, (_, option) in OPTIONS.items() if option.path.startswith("agent.parameters."))
"""The options that are parameters of the model."""
AGENT_OPTIONS: Final = tuple(AgentOptions.__annotations__)
"""The options of an agent without code."""
FORK_OPTIONS: Final = (
    *("model", "system", "tools", "max_cost", "no_max_cost", "max_tokens", "max_steps", "timeout", "source"),
    *PARAMETERS,
)
"""The options in which a fork may differ from the other task. Their fields are those of ForkOverrides too."""


def path_in_fork(option: Option) -> str:
    """Returns the path of the field of ForkOverrides that an option sets."""
    return option.path.removeprefix("agent.")


def only(kind: Any, options: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the options. Raises TypeError for one that the class does not have."""
    known = options_of(kind)
    if unknown := next((name for name in options if name not in known), ""):
        raise TypeError(f"unexpected keyword argument {unknown!r}; there are {', '.join(known)}")
    return options


# The names in refusals.

_OTHER_FIELDS: Final = {
    "goal": "goal",
    "result_schema_json": "result",
    "control.function": "function",
    "control.input_json": "input",
    "agent_pin": "agent",
}
"""The arguments that are not options, by the fields that they set."""

ARGUMENTS: Final = {option.path: name for name, (_, option) in OPTIONS.items() if option.path} | _OTHER_FIELDS


def argument_of(field: str, arguments: Mapping[str, str] = ARGUMENTS) -> str:
    """Returns what the caller typed for a field of the contract: `max_cost` for `spec.limits.max_nano_usd`.

    What has no name of its own keeps that of the contract, without the message around it. `arguments`: the names by
    paths in the spec, or in the definition of an agent.
    """
    message, _, path = field.partition(".")
    if message not in {"spec", "definition"}:
        return field
    for one in ("agent.tools", "agent_pin"):  # an argument is the whole of what these messages hold
        path = re.sub(rf"^({one})\.\w+", r"\1", path)
    known = [one for one in arguments if path == one or path.startswith((f"{one}.", f"{one}["))]
    return arguments[longest] + path.removeprefix(longest) if (longest := max(known, key=len, default="")) else path


# The signatures.


def takes(kind: Any) -> Callable[[F], F]:
    """Shows the options of a method's `**options` in its signature, and their texts in its documentation."""

    def shown(method: F) -> F:
        signature = inspect.signature(method, eval_str=True)
        own = [one for one in signature.parameters.values() if one.kind is not inspect.Parameter.VAR_KEYWORD]
        options = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default_of(hint), annotation=hint)
            for name, (hint, _) in options_of(kind).items()
        ]
        method.__signature__ = signature.replace(parameters=[*own, *options])  # type: ignore[attr-defined]  # of functions
        lines = [f"        {name}: {option.text}." for name, (_, option) in options_of(kind).items()]
        method.__doc__ = "\n".join([(method.__doc__ or "").rstrip(), "", *lines, "        "])
        return method

    return shown
