"""Control work: which function, and what it is given."""

from __future__ import annotations

from tenure.v1 import task_pb2
from tenure.validators.fields import is_json
from tenure.validators.limits import FUNCTION_NAME, MAX_CONTROL_JSON_BYTES
from tenure.validators.violations import Violations


def check_control(control: task_pb2.ControlWork, v: Violations, field: str) -> None:
    named = bool(FUNCTION_NAME.match(control.function))
    v.require(named, f"{field}.function", "must be a name of up to 55 characters: letters, digits, dots, - and _")
    size = len(control.input_json.encode())
    v.require(size <= MAX_CONTROL_JSON_BYTES, f"{field}.input_json", f"at most {MAX_CONTROL_JSON_BYTES} bytes")
    v.require(not control.input_json or is_json(control.input_json), f"{field}.input_json", "must be one JSON value")
