"""The parameters of a model in each form of a submit, from the one description of its options."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import pytest

from services.gateway.http.requests import ForkBody, SubmitBody
from services.gateway.http.shapes import read_json
from services.gateway.http.tasks import submit_of
from tenure.cli.agents import read_definition
from tenure.cli.schedules import create
from tenure.cli.send_and_fork import fork, fork_request
from tenure.cli.submit import request_of, submit
from tenure.domain.errors import InvalidRequest
from tenure.domain.model_parameters import Effort
from tenure.sdk.from_wire import task_info
from tenure.sdk.submit_options import FORK_OPTIONS, OPTIONS, PARAMETERS, path_in_fork
from tenure.sdk.submit_request import overrides_of, submit_request
from tenure.v1 import task_pb2

GIVEN: dict[str, Any] = {
    "temperature": 0.0,
    "top_p": 0.5,
    "effort": "high",
    "tool_choice": "any",
    "seed": 0,
    "extra_body": {"top_k": 40},
}
EXPECTED = task_pb2.ModelParameters(
    temperature=0.0,
    top_p=0.5,
    effort=task_pb2.EFFORT_HIGH,
    tool_choice="any",
    seed=0,
    extra_body_json='{"top_k": 40}',
)
ARGUMENTS = [
    *("--temperature", "0", "--top-p", "0.5", "--effort", "high", "--tool-choice", "any", "--seed", "0"),
    *("--extra-body", '{"top_k": 40}'),
]


def parsed(command: click.Command, *arguments: str) -> dict[str, Any]:
    names = ["-h", "--help"]  # as below `tenure`: a command keeps the names of its first context for all tests
    return command.make_context("tenure", list(arguments), help_option_names=names).params


def test_parameters_in_python() -> None:
    assert submit_request("go", GIVEN).spec.agent.parameters == EXPECTED
    assert submit_request("go", {"effort": Effort.MAX}).spec.agent.parameters.effort == task_pb2.EFFORT_MAX
    assert not submit_request("go", {}).spec.agent.HasField("parameters")


@pytest.mark.parametrize(
    ("name", "value"),
    [("effort", "very"), ("temperature", "hot"), ("seed", "7"), ("extra_body", [1]), ("thinking_tokens", 0)],
)
def test_wrong_parameter_is_refused_by_its_name(name: str, value: Any) -> None:
    with pytest.raises(InvalidRequest) as refused:
        submit_request("go", {name: value})
    assert [violation.field for violation in refused.value.violations] == [name]


@pytest.mark.parametrize("name", PARAMETERS)
def test_agent_with_its_own_model_takes_no_parameters(name: str) -> None:
    given = GIVEN | {"thinking_tokens": 2048}
    with pytest.raises(InvalidRequest, match=name):
        submit_request("go", {name: given[name]}, agent="support")
    with pytest.raises(click.UsageError, match="the agent chooses its model"):
        request_of("go", agent="support", **{name: given[name] or 1})


def test_parameters_on_the_command_line() -> None:
    options = parsed(submit, "go", *ARGUMENTS)
    del options["watched"]
    assert request_of(**options).spec.agent.parameters == EXPECTED
    assert {param.name for param in create.params} >= set(PARAMETERS)
    with pytest.raises(click.BadParameter, match="not a JSON object"):
        parsed(submit, "go", "--extra-body", "[1]")


def test_parameters_over_http() -> None:
    body = read_json(SubmitBody, {"goal": "go", **GIVEN, "effort": "HIGH"})
    assert submit_of(body).spec.agent.parameters == EXPECTED
    with pytest.raises(InvalidRequest, match="cannot have agent"):
        submit_of(read_json(SubmitBody, {"function": "month_end", "effort": "LOW"}))
    assert read_json(ForkBody, {"seed": 0}).seed == 0  # type: ignore[attr-defined]  # declared from the description


def test_parameters_of_an_agent_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "agent.toml"
    file.write_text(
        'name = "a"\ntemperature = 0.0\ntop_p = 0.5\neffort = "high"\ntool_choice = "any"\nseed = 0\n'
        "extra_body = { top_k = 40 }\n"
    )
    assert read_definition(file)[1].agent.parameters == EXPECTED
    file.write_text('name = "a"\neffort = "very"\n')
    with pytest.raises(click.ClickException, match="effort"):
        read_definition(file)


def test_parameters_of_a_fork() -> None:
    options = parsed(fork, "TASK", *ARGUMENTS)
    del options["watched"], options["task"]
    assert fork_request(**options).overrides.parameters == EXPECTED
    assert fork_request().overrides == task_pb2.ForkOverrides()


@pytest.mark.parametrize("name", FORK_OPTIONS)
def test_option_of_a_fork_has_a_field_in_its_overrides(name: str) -> None:
    message: Any = task_pb2.ForkOverrides.DESCRIPTOR
    *above, field = path_in_fork(OPTIONS[name][1]).split(".")
    for part in above:
        message = message.fields_by_name[part].message_type
    assert field in message.fields_by_name


def test_fork_with_an_empty_model_has_the_default_one() -> None:
    typed = parsed(fork, "TASK", "--model", "", "--tool-choice", "")
    del typed["watched"], typed["task"]
    sent = read_json(ForkBody, {"model": "", "tool_choice": "", "tools": None})
    for overrides in (
        fork_request(**typed).overrides,
        overrides_of({name: getattr(sent, name) for name in FORK_OPTIONS}),
    ):
        assert overrides == task_pb2.ForkOverrides(model="")


def test_parameters_in_the_public_json() -> None:
    queued = task_pb2.TASK_STATE_QUEUED
    task = task_pb2.Task(state=queued, spec=task_pb2.TaskSpec(agent=task_pb2.AgentSpec(parameters=EXPECTED)))
    assert task_info(task).to_json()["parameters"] == {
        **GIVEN,
        "effort": "HIGH",
        "thinking_tokens": 0,
    }
    task.spec.agent.ClearField("parameters")
    assert task_info(task).to_json()["parameters"] is None
