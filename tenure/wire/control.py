"""Control work's facts on the wire."""

from __future__ import annotations

from tenure.domain.entries import ControlFailure, ControlStep
from tenure.v1 import ledger_pb2
from tenure.wire.times import duration, seconds


def failure_to_domain(message: ledger_pb2.ControlFailure) -> ControlFailure:
    return ControlFailure(
        error_class=message.error_class,
        message=message.message,
        retryable=message.retryable,
        retry_after_seconds=seconds(message.retry_after) if message.HasField("retry_after") else None,
    )


def failure_to_wire(fact: ControlFailure) -> ledger_pb2.ControlFailure:
    return ledger_pb2.ControlFailure(
        error_class=fact.error_class,
        message=fact.message,
        retryable=fact.retryable,
        retry_after=None if fact.retry_after_seconds is None else duration(fact.retry_after_seconds),
    )


def step_to_domain(message: ledger_pb2.ControlStep) -> ControlStep:
    return ControlStep(
        name=message.name,
        result_json=message.result_json,
        failure=failure_to_domain(message.failure) if message.HasField("failure") else None,
        duration_seconds=seconds(message.duration),
    )


def step_to_wire(fact: ControlStep) -> ledger_pb2.ControlStep:
    message = ledger_pb2.ControlStep(name=fact.name, duration=duration(fact.duration_seconds))
    if fact.failure is None:
        message.result_json = fact.result_json
    else:
        message.failure.CopyFrom(failure_to_wire(fact.failure))
    return message
