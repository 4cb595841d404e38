"""Result validation: checks a task's result schema, and validates final answers against it.

The functions are pure, but their run time has no limit. A schema comes from an untrusted user and an answer from a
model: a pattern may backtrack without end, and combined schemas multiply. So callers run `problem_of_schema` and
`validate_result` in a process of their own and limit its time (tenure/runtime/schema_checks.py).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from tenure.domain.entries import ResultRejected
from tenure.domain.errors import InvalidRequest, TenureError
from tenure.domain.states import TaskState
from tenure.domain.tool_arguments import depth_of, storable_json, strict_json

if TYPE_CHECKING:
    from jsonschema import Draft202012Validator

    from tenure.domain.entries import OperatorCloseOut

MAX_SCHEMA_BYTES: Final = 16 * 1024
MAX_SCHEMA_DEPTH: Final = 32
MAX_PATTERN_BYTES: Final = 1024
MAX_PATTERNS_BYTES: Final = 4096
"""The limit for all patterns of a schema together: to compile one kilobyte of character classes can take a second."""
MAX_RESULT_BYTES: Final = 256 * 1024
MAX_VIOLATIONS: Final = 5
LONGEST_VIOLATION: Final = 300

_DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
_REFERENCES: Final = frozenset({"$ref", "$dynamicRef"})
_DATA: Final = frozenset({"const", "enum", "default", "examples"})
_FENCE: Final = re.compile(r"^```[a-zA-Z]*[ \t]*\n(.*?)^```[ \t]*$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class ResultValidation:
    """The validation of a final answer: the result as JSON, or the violations of the schema, each as a text."""

    result_json: str = ""
    violations: tuple[str, ...] = ()


class _Unfit(Exception):  # noqa: N818  a finding about the schema, not a failure of the check
    """The schema is refused. The message continues a sentence that begins with the field's name."""


def problem_of_size(schema_json: str) -> str:
    """Returns the problem like `problem_of_schema`, but checks only the size, which takes no time."""
    return f"has more than {MAX_SCHEMA_BYTES} bytes" if len(schema_json.encode()) > MAX_SCHEMA_BYTES else ""


def problem_of_schema(schema_json: str) -> str:
    """Returns why this is not a result schema, as the end of a sentence that begins with the field's name, or "".

    The run time has no limit: never call this in an event loop.
    """
    if problem := problem_of_size(schema_json):
        return problem
    try:
        schema = strict_json(schema_json)
        if not isinstance(schema, dict):
            return "must be a JSON object"
        _check_parts(schema)
        _check_meaning(schema)
    except (ValueError, RecursionError) as error:
        return f"is not valid JSON: {error}"
    except _Unfit as unfit:
        return str(unfit)
    return ""


def validate_result(schema_json: str, answer: str) -> ResultValidation:
    """Validates a final answer: JSON alone, or text with exactly one fenced block, which contains the JSON.

    The run time has no limit: never call this in an event loop.
    """
    text = _json_in(answer)
    if len(text.encode()) > MAX_RESULT_BYTES:
        return ResultValidation(violations=(f"the answer has more than {MAX_RESULT_BYTES} bytes",))
    try:
        value = storable_json(text)
    except ValueError as error:
        return ResultValidation(violations=(f"the answer is not valid JSON: {error}",))
    try:
        violations = tuple(_violations(_validator(json.loads(schema_json)), value))
    except RecursionError:
        return ResultValidation(
            violations=("the answer cannot be compared with the schema: one of the two nests too deeply",)
        )
    return ResultValidation(violations=violations) if violations else ResultValidation(text)


def _json_in(answer: str) -> str:
    blocks = _FENCE.findall(answer)
    return (blocks[0] if len(blocks) == 1 else answer).strip()


def _violations(validator: Draft202012Validator, value: Any) -> Iterator[str]:
    """Yields the first MAX_VIOLATIONS violations: a long list of wrong items has one each."""
    errors = list(islice(validator.iter_errors(value), MAX_VIOLATIONS + 1))
    for error in errors[:MAX_VIOLATIONS]:
        message = f"{error.json_path}: {error.message}".encode(errors="replace").decode()
        yield message if len(message) <= LONGEST_VIOLATION else f"{message[:LONGEST_VIOLATION]} …"
    if len(errors) > MAX_VIOLATIONS:
        yield "and more"


def _validator(schema: dict[str, Any]) -> Draft202012Validator:
    """Returns a validator with an empty registry of its own, so that it never fetches a schema."""
    from jsonschema import Draft202012Validator  # slow to import, and few tasks have a schema
    from referencing import Registry

    return Draft202012Validator(schema, registry=Registry())


def _check_meaning(schema: dict[str, Any]) -> None:
    """Raises _Unfit when a keyword is used wrongly: checks the schema against the meta-schema, then its references."""
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import SchemaError

    try:
        Draft202012Validator.check_schema(schema)
    except SchemaError as error:
        place = f" at {error.json_path}" if error.json_path != "$" else ""
        raise _Unfit(f"is not a valid JSON Schema{place}: {error.message[:LONGEST_VIOLATION]}") from None
    _check_references(schema)


def _check_references(schema: dict[str, Any]) -> None:
    from referencing import Registry
    from referencing.exceptions import Unresolvable
    from referencing.jsonschema import DRAFT202012

    resolver = Registry().resolver_with_root(DRAFT202012.create_resource(schema))
    for name, value in _keywords(schema):
        if name in _REFERENCES and isinstance(value, str):
            try:
                resolver.lookup(value)
            except Unresolvable:
                raise _Unfit(f"refers to {value!r}, which is not in the schema") from None


def _check_parts(schema: dict[str, Any]) -> None:
    """Raises _Unfit for what the meta-schema allows and Tenure does not."""
    if schema.get("$schema", _DIALECT) not in {_DIALECT, f"{_DIALECT}#"}:
        raise _Unfit(f"must be of draft 2020-12: set its $schema to {_DIALECT}, or leave $schema out")
    if depth_of(schema) > MAX_SCHEMA_DEPTH:
        raise _Unfit(f"nests more than {MAX_SCHEMA_DEPTH} deep")
    for name, value in _keywords(schema):
        if name == "$id" and isinstance(value, str) and value is not schema.get("$id"):
            raise _Unfit("must not have an $id in a subschema")
        if name in _REFERENCES and isinstance(value, str) and not value.startswith("#"):
            raise _Unfit(
                f"refers to {value[:LONGEST_VIOLATION]!r}: a reference must begin with # and stay within the schema"
            )
    _check_patterns(list(_patterns(schema)))


def _patterns(schema: dict[str, Any]) -> Iterator[str]:
    for name, value in _keywords(schema):
        if name == "pattern" and isinstance(value, str):
            yield value
        if name == "patternProperties" and isinstance(value, dict):
            yield from value


def _check_patterns(patterns: list[str]) -> None:
    if sum(len(pattern.encode(errors="surrogatepass")) for pattern in patterns) > MAX_PATTERNS_BYTES:
        raise _Unfit(f"has patterns of more than {MAX_PATTERNS_BYTES} bytes together")
    for pattern in patterns:
        _check_pattern(pattern)


def _check_pattern(pattern: str) -> None:
    if len(pattern.encode(errors="surrogatepass")) > MAX_PATTERN_BYTES:
        raise _Unfit(f"has a pattern of more than {MAX_PATTERN_BYTES} bytes, which begins with {pattern[:40]!r}")
    try:
        re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise _Unfit(f"has the pattern {pattern[:100]!r}, which is not a valid regular expression: {error}") from None


def _keywords(schema: Any) -> Iterator[tuple[str, Any]]:
    """Yields all members of all objects, except within keywords that contain data.

    That includes properties with the name of a keyword, but the value of such a property is a schema and never a
    string.
    """
    stack = [schema]
    while stack:
        part = stack.pop()
        if isinstance(part, list):
            stack += part
        elif isinstance(part, dict):
            yield from part.items()
            stack += [value for name, value in part.items() if name not in _DATA]


# The texts for the model, and the ledger's check of the result.

_INSTRUCTIONS: Final = """\
When you are done, your final answer is read by a program. It must be one JSON value that fits the JSON Schema below, \
and nothing else: no words before or after it. Until then speak and use your tools as you like.

{schema}"""


def system_prompt(system: str, result_schema_json: str) -> str:
    """Returns the task's system prompt, with the instructions about its result schema ("": no schema)."""
    if not result_schema_json:
        return system
    instructions = _INSTRUCTIONS.format(schema=result_schema_json)
    return f"{system}\n\n{instructions}" if system else instructions


def rejection(violations: Sequence[str]) -> ResultRejected:
    """Returns the entry for a rejected answer. The model reads its message."""
    listed = "\n".join(f"- {violation}" for violation in violations)
    message = f"Your final answer does not fit the JSON Schema that your result must have:\n{listed}\n"
    instruction = "Answer again with one JSON value that fits it, and nothing else."
    return ResultRejected(f"{message}{instruction}", tuple(violations))


def refuse_result(close_out: OperatorCloseOut, *, has_schema: bool) -> TenureError | None:
    """Returns the refusal of an operator's close-out as SUCCEEDED: its result is missing, or is invalid JSON although
    the task has a result schema. The gateway validates it against the schema.
    """
    if close_out.to_state is not TaskState.SUCCEEDED:
        return None
    if not close_out.result:
        return InvalidRequest(violations=[("result", "must be set for SUCCEEDED")])
    if not has_schema:
        return None
    try:
        storable_json(close_out.result)
    except ValueError as error:
        message = f"must be JSON, because the task has a result_schema_json: {error}"
        return InvalidRequest(violations=[("result", message)])
    return None


def refuse_success(to_state: TaskState, *, has_schema: bool, is_to_end: bool, result_json: str) -> TenureError | None:
    """Returns the refusal of a transition to SUCCEEDED without the result as JSON that the schema requires, or None.

    A result as JSON without a result schema is refused too. `is_to_end`: the task has a pending ending, which takes
    precedence over SUCCEEDED.
    """
    if to_state is not TaskState.SUCCEEDED or is_to_end or has_schema == bool(result_json):
        return None
    message = "must be set: the task has a result_schema_json" if has_schema else "the task has no result_schema_json"
    return InvalidRequest(violations=[("transition.result_json", message)])
