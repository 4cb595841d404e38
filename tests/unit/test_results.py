"""Results with a shape: which schemas are taken, which answers fit, and what the loop makes of those that do not."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tenure.domain import entries as facts
from tenure.domain.budget import TokenUsage
from tenure.domain.fold import ResumePoint, fold
from tenure.domain.next_action import (
    AskAgain,
    CallModel,
    CloseOut,
    CorrectAnswer,
    ValidateResult,
    after_validation,
    next_action,
)
from tenure.domain.result_schema import (
    MAX_PATTERN_BYTES,
    MAX_PATTERNS_BYTES,
    MAX_RESULT_BYTES,
    MAX_SCHEMA_BYTES,
    MAX_SCHEMA_DEPTH,
    MAX_VIOLATIONS,
    ResultValidation,
    problem_of_schema,
    refuse_success,
    system_prompt,
    validate_result,
)
from tenure.domain.states import TaskState
from tenure.domain.task import TaskPolicy, TaskSpec

PRICE = json.dumps(
    {
        "type": "object",
        "properties": {"price": {"type": "number"}},
        "required": ["price"],
        "additionalProperties": {"type": "string"},
    }
)
SPEC = TaskSpec("find out", policy=TaskPolicy(max_result_corrections=2), result_schema_json=PRICE)
START = (0, facts.Submitted(SPEC)), (0, facts.Transition(TaskState.QUEUED, "SUBMITTED"))


def point(*bodies: tuple[int, facts.Body]) -> ResumePoint:
    all_of_them: tuple[tuple[int, facts.Body], ...] = (*START, *bodies)
    return fold(facts.Entry(number, step, body) for number, (step, body) in enumerate(all_of_them, start=1))


def answered(step: int, text: str, stop: str = "end_turn") -> tuple[tuple[int, facts.Body], ...]:
    message = facts.AssistantMessage(1, ({"type": "text", "text": text},), stop, TokenUsage(10, 5))
    return (step, facts.ModelAttempt(1, "m", 10, 20, 30)), (step, message)


def validated(at: ResumePoint) -> CloseOut | CorrectAnswer:
    move = next_action(at)
    assert isinstance(move, ValidateResult)
    return after_validation(at, validate_result(move.schema_json, move.text))


@pytest.mark.parametrize(
    "schema",
    [
        {},
        {"type": "object", "properties": {"$ref": {"type": "string"}, "pattern": {"type": "integer"}}},
        {"$schema": "https://json-schema.org/draft/2020-12/schema", "type": "array", "items": {"$ref": "#"}},
        {
            "$defs": {"node": {"type": "object", "additionalProperties": {"$ref": "#/$defs/node"}}},
            "$ref": "#/$defs/node",
        },
        {"enum": [{"$ref": "elsewhere"}]},
        {"type": "string", "pattern": "^[a-z]+$", "format": "email"},
    ],
)
def test_a_json_schema_is_taken(schema: dict[str, Any]) -> None:
    assert problem_of_schema(json.dumps(schema)) == ""


@pytest.mark.parametrize(
    ("schema_json", "expected"),
    [
        ("{", "is not valid JSON"),
        ("[" * 8000, "is not valid JSON"),
        ('{"minimum": NaN}', "is not valid JSON"),
        ("true", "must be a JSON object"),
        ('{"type": "objekt"}', "is not a valid JSON Schema at $.type"),
        ('{"properties": {"a": {"minimum": "3"}}}', "is not a valid JSON Schema at $.properties.a.minimum"),
        ('{"$schema": "http://json-schema.org/draft-07/schema#"}', "draft 2020-12"),
        ('{"$ref": "https://example.com/schema.json"}', "must begin with # and stay within the schema"),
        ('{"items": {"$dynamicRef": "file:///etc/passwd"}}', "must begin with # and stay within the schema"),
        ('{"$ref": "#/$defs/missing"}', "which is not in the schema"),
        ('{"properties": {"a": {"$id": "https://example.com/inner"}}}', "$id in a subschema"),
        ('{"pattern": "(unclosed"}', "pattern '(unclosed'"),
        ('{"patternProperties": {"*": {}}}', "pattern '*'"),
        ('{"not":' * MAX_SCHEMA_DEPTH + "{}" + "}" * MAX_SCHEMA_DEPTH, f"more than {MAX_SCHEMA_DEPTH} deep"),
        (json.dumps({"description": "x" * MAX_SCHEMA_BYTES}), f"more than {MAX_SCHEMA_BYTES} bytes"),
        (json.dumps({"pattern": "é" * 513}), f"more than {MAX_PATTERN_BYTES} bytes"),
        (json.dumps({"anyOf": [{"pattern": "x" * 1000}] * 5}), f"more than {MAX_PATTERNS_BYTES} bytes together"),
        (json.dumps({"patternProperties": {"x" * 1025: {}}}), f"more than {MAX_PATTERN_BYTES} bytes"),
    ],
)
def test_unsupported_schema_is_refused(schema_json: str, expected: str) -> None:
    assert expected in problem_of_schema(schema_json)


@pytest.mark.parametrize(
    ("answer", "result"),
    [
        ('{"price": 3}', '{"price": 3}'),
        (' {"price": 1e3}\n', '{"price": 1e3}'),
        ('```json\n{"price": 3.50}\n```', '{"price": 3.50}'),
        ('Here it is:\n\n```\n{"price": 3}\n```\nAnything else?', '{"price": 3}'),
        ('{"price": 3, "why": "\\ud83d\\ude00 \\u0000 ```"}', '{"price": 3, "why": "\\ud83d\\ude00 \\u0000 ```"}'),
    ],
)
def test_an_answer_that_fits_is_the_result_as_it_was_written(answer: str, result: str) -> None:
    assert validate_result(PRICE, answer) == ResultValidation(result)


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("", "the answer is not valid JSON"),
        ('It is {"price": 3}', "the answer is not valid JSON"),
        ('```\n{"price": 3}\n```\nor\n```\n{"price": 4}\n```', "the answer is not valid JSON"),
        ('{"price": NaN}', "NaN is not a JSON number"),
        ('{"price": 1e400}', "the number 1e400 is too large"),
        ('{"price": "3"}', "$.price: '3' is not of type 'number'"),
        ("{}", "$: 'price' is a required property"),
        ('{"price": 1, "\\ud800": 0}', "half of a surrogate pair"),
        ("[" * 100_000, "nests too deeply"),
        (f'"{"x" * MAX_RESULT_BYTES}"', f"more than {MAX_RESULT_BYTES} bytes"),
    ],
)
def test_invalid_answer_has_path_and_reason(answer: str, expected: str) -> None:
    [violation] = validate_result(PRICE, answer).violations
    assert expected in violation


def test_violations_are_limited() -> None:
    violations = validate_result('{"items": {"type": "string"}}', json.dumps(list(range(1000)))).violations
    assert (len(violations), violations[-1]) == (MAX_VIOLATIONS + 1, "and more")


def test_a_circular_schema_is_a_typed_error() -> None:
    circle = '{"$ref": "#"}'
    assert problem_of_schema(circle) == ""
    assert "nests too deeply" in validate_result(circle, "1").violations[0]


def test_the_model_knows_the_schema_from_the_start() -> None:
    assert system_prompt("Be brief.", "") == "Be brief."
    assert system_prompt("Be brief.", PRICE).startswith("Be brief.\n\n")
    assert PRICE in system_prompt("", PRICE)


def test_an_answer_that_fits_closes_the_task_out_with_its_json() -> None:
    end = validated(point(*answered(1, 'So:\n```json\n{"price": 3}\n```')))
    expected = CloseOut(TaskState.SUCCEEDED, "FINAL_ANSWER", "", 'So:\n```json\n{"price": 3}\n```', '{"price": 3}')
    assert end == expected


def test_an_unfit_answer_is_corrected_by_the_model() -> None:
    at = point(*answered(1, "three"))
    move = validated(at)
    assert isinstance(move, CorrectAnswer)
    assert (move.step, "is not valid JSON" in move.rejected.text) == (1, True)
    corrected = point(*answered(1, "three"), (1, move.rejected))
    assert next_action(corrected) == CallModel(2, 1)
    sent = point(*answered(1, "three"), (1, move.rejected), (2, facts.ModelAttempt(1, "m", 10, 20, 30)))
    assert sent.messages[-1] == {"role": "user", "content": [{"type": "text", "text": move.rejected.text}]}


def test_validation_after_a_crash_gives_the_same_correction() -> None:
    bodies = answered(1, '{"price": "3"}')
    assert validated(point(*bodies)) == validated(point(*bodies))


def test_after_the_last_correction_the_task_fails() -> None:
    bodies: list[tuple[int, facts.Body]] = []
    for step in (1, 2):
        bodies += answered(step, f"try {step}")
        move = validated(point(*bodies))
        assert isinstance(move, CorrectAnswer)
        bodies.append((step, move.rejected))
    end = validated(point(*bodies, *answered(3, "try 3")))
    assert isinstance(end, CloseOut)
    assert (end.to_state, end.reason, end.result, end.result_json) == (TaskState.FAILED, "RESULT_INVALID", "try 3", "")
    assert "after 2 corrections" in end.message


def test_a_requeue_gives_the_corrections_back() -> None:
    rejected = facts.ResultRejected("no", ("no",))
    failed = (3, facts.Transition(TaskState.FAILED, "RESULT_INVALID", from_state=TaskState.RUNNING))
    again = (3, facts.Transition(TaskState.QUEUED, "OPERATOR_REQUEUE", from_state=TaskState.FAILED))
    tried = (*answered(1, "one"), (1, rejected), *answered(2, "two"), (2, rejected), *answered(3, "three"))
    assert point(*tried).corrections == 2
    assert isinstance(validated(point(*tried, failed, again)), CorrectAnswer)


def test_message_precedes_the_validation() -> None:
    assert next_action(point(*answered(1, "three"), (0, facts.UserMessage("wait")))) == CallModel(2, 1)


def test_a_continued_answer_is_validated_as_a_whole() -> None:
    cut = answered(1, '{"pri', "max_tokens")
    assert isinstance(next_action(point(*cut)), AskAgain)
    end = validated(point(*cut, (1, facts.UserMessage("go on")), *answered(2, 'ce": 3}')))
    assert isinstance(end, CloseOut)
    assert end.result_json == '{"price": 3}'


def test_tasks_with_a_schema_and_only_they_succeed_with_json() -> None:
    def refusal(state: TaskState = TaskState.SUCCEEDED, **changes: Any) -> object:
        parameters = {"has_schema": True, "is_to_end": False, "result_json": ""}
        return refuse_success(state, **{**parameters, **changes})

    assert refusal() is not None
    assert refusal(result_json="3") is None
    assert refusal(has_schema=False) is None
    assert refusal(has_schema=False, result_json="3") is not None
    assert refusal(is_to_end=True) is None
    assert refusal(TaskState.FAILED) is None
