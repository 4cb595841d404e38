"""The options that select tasks, the same for every command that takes a filter."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from functools import partial, wraps
from typing import Any, Final

import click

from tenure.cli.group import SectionOption
from tenure.cli.parameters import DOLLARS_FROM_0, DURATION, EARLIER, LABEL, SOURCE
from tenure.domain.budget import NANO_USD
from tenure.domain.errors import InvalidRequest
from tenure.domain.states import TaskState
from tenure.domain.task import Source
from tenure.sdk.task_filter import RANGES, task_filter
from tenure.v1 import task_pb2

Callback = Callable[..., Any]


def filter_options(*, reasons: str = "--reason") -> Callable[[Callback], Callback]:
    """Returns a decorator that adds the options, and passes the filter that they describe as `task_filter`.

    `reasons`: the name of the option for the reasons of states; commands that record a reason have another one.
    """

    def decorate(command: Callback) -> Callback:
        @wraps(command)
        def with_filter(
            *arguments: Any,
            states: tuple[str, ...],
            state_reasons: tuple[str, ...],
            labels: tuple[tuple[str, str], ...],
            queue: str,
            agent: str,
            source: Source | None,
            **options: Any,
        ) -> Any:
            ranges = {name: options.pop(name) for name in RANGES}
            for cost in ("min_cost", "max_cost"):
                if ranges[cost] is not None:
                    ranges[cost] = Decimal(ranges[cost]) / NANO_USD
            try:
                wanted = task_filter(
                    state=states,
                    labels=dict(labels),
                    queue=queue,
                    source=source,
                    reason=[reason.upper() for reason in state_reasons],
                    agent=agent,
                    **ranges,
                )
            except InvalidRequest as error:
                flag = f"--{error.violations[0].field.replace('_', '-')}"
                raise click.BadParameter(error.violations[0].description, param_hint=flag) from error
            return command(*arguments, task_filter=wanted, **options)

        decorated: Callback = with_filter
        for option in reversed(_options(reasons)):
            decorated = option(decorated)
        return decorated

    return decorate


def is_empty(wanted: task_pb2.TaskFilter) -> bool:
    """Returns whether no option was given."""
    return not wanted.ListFields()


_STATES: Final = [state.value for state in TaskState]


_option: Final = partial(click.option, cls=SectionOption, section="Which tasks")


def _options(reasons: str) -> list[Callable[[Callback], Callback]]:
    return [
        _option(
            "--state",
            "states",
            multiple=True,
            type=click.Choice(_STATES, case_sensitive=False),
            help="Only tasks in this state; may be repeated.",
        ),
        _option(
            reasons,
            "state_reasons",
            multiple=True,
            metavar="CODE",
            help="Only tasks whose state has this reason, for example MODEL_UNAVAILABLE; may be repeated.",
        ),
        _option(
            "--label",
            "labels",
            type=LABEL,
            multiple=True,
            help="key=value: only tasks with this label; may be repeated, then all must match.",
        ),
        _option("--queue", default="", help="Only tasks of this queue."),
        _option(
            "--agent", default="", metavar="AGENT[@REVISION]", help="Only tasks of this agent, for example support@7."
        ),
        _option(
            "--source",
            type=SOURCE,
            default=None,
            metavar="KIND[/ID[/RUN]]",
            help="Only tasks of this source, for example scheduler/nightly; a slash in the ID is written as %2F.",
        ),
        _option(
            "--text",
            default="",
            metavar="WORDS",
            help="Only tasks with all of these words, or words that begin so, in the goal and the results.",
        ),
        _option("--model", default="", metavar="ID", help="Only tasks whose newest model call was of this model."),
        _option(
            "--since", type=EARLIER, default=None, help="Only tasks submitted in the last 10m, 2h, …, or since a time."
        ),
        _option(
            "--before", type=EARLIER, default=None, help="Only tasks submitted before the last 10m, 2h, …, or a time."
        ),
        _option(
            "--ended-since", type=EARLIER, default=None, help="Only tasks that ended in that time, or since a time."
        ),
        _option(
            "--ended-before", type=EARLIER, default=None, help="Only tasks that ended before that time, or a time."
        ),
        _option(
            "--min-cost", type=DOLLARS_FROM_0, default=None, help="Only tasks that cost so many US dollars or more."
        ),
        _option("--max-cost", type=DOLLARS_FROM_0, default=None, help="Only tasks that cost at most this."),
        _option(
            "--min-duration",
            type=DURATION,
            default=None,
            help="Only tasks that took this long or longer, so far or in all.",
        ),
        _option("--max-duration", type=DURATION, default=None, help="Only tasks that took at most this long."),
    ]
