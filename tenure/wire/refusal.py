"""Domain errors inside stream frames, where a gRPC status would end the stream for its neighbours."""

from __future__ import annotations

from tenure.domain.errors import TenureError
from tenure.runtime import status
from tenure.v1 import token_pb2


def refusal_to_wire(error: TenureError) -> token_pb2.Refusal:
    plain = status.to_plain(error)
    return token_pb2.Refusal(code=plain.code, reason=plain.reason, message=plain.message, metadata=plain.metadata)


def refusal_to_domain(refusal: token_pb2.Refusal) -> TenureError | status.PeerFailed:
    """The error to raise; PeerFailed stands for a bug of the peer."""
    return status.from_plain(refusal.code, refusal.reason, refusal.message, dict(refusal.metadata))
