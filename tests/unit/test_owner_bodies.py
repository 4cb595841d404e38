"""A commit's entries: what is checked of them before they are stored, and the digest by which a repeat is known."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.checkpoint.commit.owner_bodies import ALWAYS_READ, problem_of_body
from services.checkpoint.commit.prepared import PreparedEntry, digest_of
from services.checkpoint.entries import WRITTEN_BY_OWNERS
from tenure.v1 import checkpoint_service_pb2 as pb
from tenure.v1 import ledger_pb2
from tenure.wire.ledger import body_to_domain
from tests.fuzz.messages import messages, type_of
from tests.support.examples import examples

FIELDS = ledger_pb2.EntryBody.DESCRIPTOR.fields_by_name
CONTENT = st.one_of(
    st.sampled_from(["", "[]", "{}", "[1]", '[{"type": 1}]', '[{"type": "text", "text": 1}]', "[NaN]", "[" * 300]),
    st.just(json.dumps([{"type": "text", "text": "hello"}])),
)


@given(st.data())
@settings(max_examples=examples(150), deadline=None)
def test_entry_that_passes_the_check_can_be_read(data: st.DataObject) -> None:
    """Also the kinds that the check does not convert: their conversion refuses nothing that the check accepts."""
    kind = data.draw(st.sampled_from(sorted(WRITTEN_BY_OWNERS)))
    message = data.draw(messages(type_of(FIELDS[kind]), {"content_json": CONTENT}, hostile_in=4))
    body = ledger_pb2.EntryBody()
    getattr(body, kind).SetInParent()
    getattr(body, kind).CopyFrom(message)
    if not problem_of_body(kind, body):
        body_to_domain(body)


@pytest.mark.parametrize("content", ["{}", "[1]", '[{"type": 1}]', '[{"type": "text", "text": 1}]', "[NaN]", "[" * 300])
def test_answer_with_unreadable_content_is_refused(content: str) -> None:
    body = ledger_pb2.EntryBody(assistant_message=ledger_pb2.AssistantMessage(content_json=content))
    assert problem_of_body("assistant_message", body).startswith("cannot be read: ")


def test_kinds_that_are_not_converted_are_written_by_owners() -> None:
    assert ALWAYS_READ <= WRITTEN_BY_OWNERS


def test_digest_of_a_commit_stays_the_same() -> None:
    """A repeat may arrive after an update of the service, which must know it by the digest that the ledger stored."""
    request = pb.CommitRequest(commit_number=7, known_sequence=12, reserve=pb.Reserve(step=3, attempt_number=1))
    entries = [PreparedEntry(2, 6, b"answer"), PreparedEntry(2, 7, b"intent")]
    assert digest_of(request, entries).hex() == "cecade33f12480fc49cd1b37fe539724"
