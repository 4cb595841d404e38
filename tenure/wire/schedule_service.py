"""Converts the enums of schedules."""

from __future__ import annotations

from tenure.domain.schedules import OverlapPolicy, RunOutcome
from tenure.v1 import schedule_service_pb2 as pb
from tenure.wire.common import EnumMap

OVERLAP_POLICIES = EnumMap(OverlapPolicy, dict(pb.OverlapPolicy.items()), "OVERLAP_POLICY", OverlapPolicy.SKIP)
RUN_OUTCOMES = EnumMap(RunOutcome, dict(pb.RunOutcome.items()), "RUN_OUTCOME", None)
