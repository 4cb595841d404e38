"""A file of receipts that was changed in any way is refused; docs/receipts.md has the format."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenure.client.receipts import read_keys, signature_check
from tenure.domain.audit import Head
from tenure.domain.receipts import (
    NO_LINK,
    BrokenReceiptsError,
    VerifiedReceipts,
    canonical,
    chain_of,
    link_of,
    verify_receipts,
)
from tenure.runtime.security.signing import Signer, write_key_pair
from tests.support.receipt_lines import CONTENT, START, TASK, head_line, receipt_line, records

FOUR = 4


@pytest.fixture(scope="module")
def signers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Signer]:
    folder = tmp_path_factory.mktemp("keys")
    for name in ("old", "new", "foreign"):
        public = folder / ("foreign.json" if name == "foreign" else "verifying.json")
        write_key_pair(folder / f"{name}.key", public, name)
    return {name: Signer.load(folder / f"{name}.key") for name in ("old", "new", "foreign")}


@pytest.fixture(scope="module")
def lines(signers: dict[str, Signer]) -> list[str]:
    """Four receipts and their head, signed by the key before a rotation and the one after it."""
    chain = chain_of(records(), Head())
    one, two = signers["old"], signers["new"]
    return [*(receipt_line(one if one_of["number"] < 3 else two, one_of) for one_of in chain), head_line(two, chain)]


@pytest.fixture(scope="module")
def verified(signers: dict[str, Signer]) -> Callable[..., VerifiedReceipts]:
    check = signature_check({name: signers[name].public_key_bytes() for name in ("old", "new")})
    return lambda lines, noted=None: verify_receipts(lines, check, noted)


def test_whole_chain_is_verified_with_keys_of_a_rotation(lines: list[str], verified: Any) -> None:
    whole = verified(lines)
    assert (whole.installation, whole.tenant, whole.task_id, whole.open_calls) == ("bank", "acme", TASK, ("9.0",))
    assert [one["tool_service"]["record"]["number"] for one in whole.receipts] == [1, 2, 3, 4]
    assert verified(lines, whole.head).head == whole.head
    assert verified(lines[2:3]).head is None
    assert whole.head.number == FOUR


def test_task_without_effects_has_a_head(signers: dict[str, Signer], verified: Any) -> None:
    assert verified([head_line(signers["new"], [])]).head == Head(0, NO_LINK)


@given(data=st.data())
def test_each_changed_character_is_refused(data: st.DataObject, lines: list[str], verified: Any) -> None:
    text = "\n".join(lines)
    place = data.draw(st.integers(0, len(text) - 1))
    other = data.draw(st.characters().filter(lambda character: character != text[place]))
    with pytest.raises(BrokenReceiptsError):
        verified((text[:place] + other + text[place + 1 :]).split("\n"))


@given(order=st.lists(st.integers(0, FOUR), max_size=6).filter(lambda order: order != [0, 1, 2, 3, FOUR]))
def test_removed_moved_and_doubled_lines_are_refused(order: list[int], lines: list[str], verified: Any) -> None:
    chosen = [lines[place] for place in order]
    if len(order) == 1 and order[0] < FOUR:
        assert verified(chosen).head is None
        return
    with pytest.raises(BrokenReceiptsError):
        verified(chosen)


def _fields(value: Any, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    if not isinstance(value, dict):
        return [path]
    return [found for name, part in value.items() for found in _fields(part, (*path, name))]


@pytest.mark.parametrize("place", [0, FOUR])
def test_each_changed_field_is_refused(place: int, lines: list[str], verified: Any) -> None:
    paths = _fields(json.loads(lines[place]))
    assert len(paths) > 8
    for path in paths:
        others: list[Any] = [None, 0, -1, 1.5, True, "", "x", [], {}]
        for other in others:
            changed = json.loads(lines[place])
            inner = changed
            for name in path[:-1]:
                inner = inner[name]
            if inner[path[-1]] == other and type(inner[path[-1]]) is type(other):
                continue
            inner[path[-1]] = other
            with pytest.raises(BrokenReceiptsError):
                verified([*lines[:place], canonical(changed), *lines[place + 1 :]])


@pytest.mark.parametrize(
    "trick",
    [
        lambda line: line.replace('"key_id"', '"key_id":"foreign","key_id"'),
        lambda line: line.replace('"v":1', '"v":1.0'),
        lambda line: line.replace('"v":1', '"v":1e0'),
        lambda line: line.replace('"v":1', '"v":01'),
        lambda line: line.replace("ü", "\\u00fc"),
        lambda line: line.replace("ü", "u\u0308"),
        lambda line: line.replace(",", ", ", 1),
        lambda line: f"{line} ",
        lambda line: f"\ufeff{line}",
        lambda line: line[:-1] + ',"note":"paid"}',
        lambda line: line.replace('"signature":"', '"signature":" '),
        lambda line: json.dumps(json.loads(line)),
        lambda line: "[" * 100_000,
        lambda line: "1" * 5000,
    ],
)
def test_other_spellings_of_a_line_are_refused(trick: Any, lines: list[str], verified: Any) -> None:
    changed = trick(lines[0])
    assert changed != lines[0]
    with pytest.raises(BrokenReceiptsError):
        verified([changed, *lines[1:]])


def test_upper_case_signature_is_refused(lines: list[str], verified: Any) -> None:
    envelope = json.loads(lines[0])
    envelope["signature"] = envelope["signature"].upper()
    with pytest.raises(BrokenReceiptsError, match="spelling"):
        verified([canonical(envelope), *lines[1:]])


def test_lines_that_a_right_key_signed_for_others_are_refused(signers: dict[str, Signer], verified: Any) -> None:
    new, chain = signers["new"], chain_of(records(), Head())
    whole = [receipt_line(new, one) for one in chain]
    other_task = chain_of(records(task_id=TASK.replace("1", "2")), Head())
    other_status = {"outcome": {"status": "FAILED", "sha256": CONTENT.hex(), "truncated": False}}
    for lines, problem in (
        ([*whole, head_line(new, chain, installation="shop")], "another task"),
        ([receipt_line(new, chain[0], installation="shop"), *whole[1:], head_line(new, chain)], "another task"),
        ([receipt_line(new, other_task[0]), *whole[1:], head_line(new, chain)], "another task"),
        ([*whole[:3], head_line(new, chain)], "other receipts"),
        ([*whole, head_line(new, chain[:3])], "other receipts"),
        ([receipt_line(new, chain[0], v=2), *whole[1:], head_line(new, chain)], "version"),
        ([receipt_line(new, chain[0], type="head"), *whole[1:], head_line(new, chain)], "neither"),
        ([receipt_line(new, chain[0], ledger=other_status), *whole[1:], head_line(new, chain)], "another outcome"),
        ([receipt_line(signers["foreign"], chain[0]), *whole[1:], head_line(new, chain)], "not among the public keys"),
    ):
        with pytest.raises(BrokenReceiptsError, match=problem):
            verified(lines)


def test_chain_must_have_a_noted_head(signers: dict[str, Signer], lines: list[str], verified: Any) -> None:
    """A database that was restored continues the chain in another way, with good signatures."""
    chain = chain_of(records(), Head())
    noted = Head(3, link_of(chain[2]))
    assert verified(lines, noted).head.number == FOUR
    for broken in (Head(3, NO_LINK), Head(5, noted.hash)):
        with pytest.raises(BrokenReceiptsError, match="noted"):
            verified(lines, broken)
    with pytest.raises(BrokenReceiptsError, match="noted"):
        verified([head_line(signers["new"], [])], noted)


@pytest.mark.parametrize("name", ["tool", "call_attempt", "epoch", "outcome_message_hash", "claim_id", "finished_at"])
def test_record_that_is_not_the_one_of_its_link_is_found(name: str) -> None:
    made = records()
    others: dict[str, Any] = {
        "tool": "x",
        "call_attempt": 2,
        "epoch": 3,
        "outcome_message_hash": NO_LINK,
        "claim_id": "",
        "finished_at": START,
    }
    made[1] = replace(made[1], **{name: others[name]})
    with pytest.raises(BrokenReceiptsError) as broken:
        chain_of(made, Head(4, made[3].link))
    assert broken.value.place == "2.0"


def test_chain_without_its_end_or_a_part_is_found() -> None:
    made = records()
    head = Head(4, made[3].link)
    assert len(chain_of(made, head)) == FOUR
    assert len(chain_of(made, Head(2, made[1].link))) == FOUR
    for some in (made[:3], made[1:], [], made[:1] + made[2:]):
        with pytest.raises(BrokenReceiptsError):
            chain_of(some, head)
    with pytest.raises(BrokenReceiptsError, match="head"):
        chain_of(made, Head(4, made[2].link))


def test_keys_are_read_as_lines_and_as_a_file(signers: dict[str, Signer], tmp_path: Path) -> None:
    write_key_pair(tmp_path / "private", tmp_path / "public", "one")
    stored = json.loads((tmp_path / "public").read_text())["keys"]
    lines = "\n".join(json.dumps({**key, "active": True}) for key in stored)
    one = read_keys((tmp_path / "public").read_text())
    assert one == read_keys(lines) == {"one": Signer.load(tmp_path / "private").public_key_bytes()}
    for text in ("", "{}", "[]", '{"keys": 1}', '{"key_id": "a", "public_key": "AAAA"}', "x"):
        with pytest.raises(ValueError, match="not public keys"):
            read_keys(text)
