"""Reads requests that a vendor's own library wrote at a worker, and packs the responses to them.

Nothing of a response is lost or added, so that the library at each worker reads the same bytes.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Iterator
from typing import Any, Final

from tenure.domain.conversation import IMAGE_BYTES
from tenure.domain.errors import InvalidRequest, WrongState
from tenure.domain.models import full_name, vendor_of, vendor_of_path
from tenure.domain.tool_arguments import MAX_JSON_DEPTH, depth_of
from tenure.model_providers.client import ModelRequest
from tenure.model_providers.vendor_calls import VendorCall
from tenure.model_providers.vendor_stream import VendorBody
from tenure.v1 import model_service_pb2 as pb
from tenure.wire.model_service import REQUEST_DIFFERS
from tenure.wire.task import usage_to_wire

MAX_PIECE_BYTES: Final = 256 * 1024
_SHORTEST_MEDIUM: Final = 4096
_MEDIA: Final = frozenset({"data", "file_data", "image_url", "url"})
"""The members of the vendors' messages that may have an image, a sound or a file as base64."""


def read_vendor_request(request: pb.VendorRequest, attempt: str, **bounds: Any) -> ModelRequest:
    """Reads a request. Raises InvalidRequest for one that no provider could be sent."""
    try:
        members = json.loads(request.body)
    except (ValueError, RecursionError) as error:
        raise _invalid("body", f"must be JSON: {str(error)[:200]}") from error
    if depth_of(members) > MAX_JSON_DEPTH:
        raise _invalid("body", f"must nest at most {MAX_JSON_DEPTH} deep")
    name = members.get("model") if isinstance(members, dict) else None
    if not isinstance(name, str) or not 0 < len(name) <= 200:
        raise _invalid("body", "must be an object with the name of a model")
    vendor = vendor_of_path(request.path)
    assert vendor is not None, "the request was checked"
    model = full_name(vendor, name)
    if vendor_of(model) != (vendor, name):
        raise _invalid("body", f"the model {name[:100]} is not one of {vendor}")
    return ModelRequest(model, (), attempt=attempt, vendor=VendorBody(request.path, request.beta, members), **bounds)


def _invalid(member: str, violation: str) -> InvalidRequest:
    return InvalidRequest(violations=[(f"vendor_request.{member}", violation)])


def digest_of(request: pb.VendorRequest) -> bytes:
    """Returns the digest by which two requests are the same."""
    return hashlib.sha256(b"\n".join((request.path.encode(), request.beta.encode(), request.body))).digest()


def media_bytes(value: Any) -> int:
    """Returns the size of the images, sounds and files in a body, beyond what they cost as text."""
    if isinstance(value, dict):
        media = [each for name, each in value.items() if name in _MEDIA and isinstance(each, str)]
        own = sum(len(each) - IMAGE_BYTES for each in media if len(each) >= max(_SHORTEST_MEDIUM, IMAGE_BYTES))
        return own + sum(media_bytes(each) for each in value.values())
    return sum(map(media_bytes, value)) if isinstance(value, list) else 0


def check_same(begun: bytes, requested: bytes) -> None:
    """Raises WrongState if a call began with another request than this one."""
    if begun != requested:
        raise WrongState(
            "this attempt began with another request, so it cannot be joined: the function did not make the same "
            "request again. Take times, random values and what other services say out of the prompt, or get them in a "
            "step, whose result is recorded",
            reason=REQUEST_DIFFERS,
        )


def vendor_end(call: VendorCall, digest: bytes) -> pb.GenerateResponse:
    """Returns the end of a call whose whole response has arrived, as it is recorded."""
    end = pb.VendorEnd(
        usage=usage_to_wire(call.usage),
        provider_request_id=call.request_id,
        content_type=call.content_type,
        compressed_body=zlib.compress(call.body, 1),
        request_digest=digest,
    )
    return pb.GenerateResponse(vendor_end=end)


def parts_of_end(ended: bytes, sent_bytes: int = 0) -> Iterator[pb.GenerateResponse]:
    """Yields what a reader of a recorded end lacks, then the end. `sent_bytes`: of the body, that the reader has."""
    end = pb.GenerateResponse.FromString(ended)
    if end.HasField("vendor_end"):
        recorded = end.vendor_end
        body = zlib.decompress(recorded.compressed_body)
        yield from body_parts(recorded.content_type, recorded.provider_request_id, body, sent_bytes)
        recorded.ClearField("compressed_body")
    yield end


def body_parts(
    content_type: str, request_id: str, body: bytes | bytearray, start: int
) -> Iterator[pb.GenerateResponse]:
    """Yields the pieces of a body from an offset on."""
    for offset in range(start, len(body), MAX_PIECE_BYTES):
        piece = bytes(body[offset : offset + MAX_PIECE_BYTES])
        part = pb.VendorPart(content_type=content_type, provider_request_id=request_id, offset=offset, data=piece)
        yield pb.GenerateResponse(vendor_part=part)
