"""Converts the entries of control functions: steps and failures."""

from __future__ import annotations

from tenure.domain.entries import ControlFailure, ControlStep
from tenure.v1 import ledger_pb2
from tenure.wire.common import duration, seconds
from tenure.wire.tool import kept_to_domain, kept_to_wire


def failure_to_domain(message: ledger_pb2.ControlFailure) -> ControlFailure:
    return ControlFailure(
        error_class=message.error_class,
        message=message.message,
        retryable=message.retryable,
        retry_after_seconds=seconds(message.retry_after) if message.HasField("retry_after") else None,
    )


def failure_to_wire(body: ControlFailure) -> ledger_pb2.ControlFailure:
    return ledger_pb2.ControlFailure(
        error_class=body.error_class,
        message=body.message,
        retryable=body.retryable,
        retry_after=None if body.retry_after_seconds is None else duration(body.retry_after_seconds),
    )


def step_to_domain(message: ledger_pb2.ControlStep) -> ControlStep:
    return ControlStep(
        name=message.name,
        result_json=message.result_json,
        failure=failure_to_domain(message.failure) if message.HasField("failure") else None,
        duration_seconds=seconds(message.duration),
        kept=kept_to_domain(message.kept) if message.HasField("kept") else None,
    )


def step_to_wire(body: ControlStep) -> ledger_pb2.ControlStep:
    message = ledger_pb2.ControlStep(name=body.name, duration=duration(body.duration_seconds))
    if body.kept is not None:
        message.kept.CopyFrom(kept_to_wire(body.kept))
    elif body.failure is None:
        message.result_json = body.result_json
    else:
        message.failure.CopyFrom(failure_to_wire(body.failure))
    return message
