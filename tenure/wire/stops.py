"""Converts stops."""

from __future__ import annotations

from typing import Final

from tenure.domain.stops import Certainty, Stop, StopsInForce, check_selectors
from tenure.v1 import admin_service_pb2 as pb
from tenure.v1 import tool_service_pb2 as tools_pb
from tenure.wire.codec import pair
from tenure.wire.common import EnumMap

CERTAINTIES: Final = EnumMap(Certainty, dict(pb.CallCertainty.items()), "CALL_CERTAINTY", None)

stop_to_wire, stop_to_domain = pair(Stop, pb.Stop)


def in_force_of(response: pb.ListStopsResponse | tools_pb.SetStopsResponse) -> StopsInForce:
    """Returns the stops in force as the ledger lists them, or the tool service keeps to them."""
    return StopsInForce(response.epoch, tuple(map(stop_to_domain, response.stops)))


def selected(request: pb.BeginStopRequest | pb.EndStopRequest) -> Stop:
    """Returns what a request selects, with its reason and author. Raises InvalidRequest for unusable selectors."""
    stop = Stop(request.tenant, request.agent, request.queue, request.tool, request.reason, request.actor)
    check_selectors(stop, is_all=request.all)
    return stop
