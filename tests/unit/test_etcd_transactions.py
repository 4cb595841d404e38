from __future__ import annotations

from contextlib import nullcontext

import pytest

from services.coordinator.etcd.transactions import (
    MAX_TXN_OPS,
    Delete,
    Get,
    Put,
    Txn,
    absent,
    prefix_end,
    present,
    to_request,
)


def test_a_transactions_width_is_its_longest_list() -> None:
    inner = Txn(when=(absent(b"a"), present(b"b"), present(b"c")), then=(Put(b"a", b""),))
    assert inner.width == 3
    assert Txn(then=(inner, inner), otherwise=(Get(b"a"),)).width == 5


def test_a_transaction_etcd_would_find_too_wide_is_not_sent() -> None:
    fits = Txn(then=tuple(Put(b"%d" % number, b"") for number in range(MAX_TXN_OPS)))
    assert len(to_request(fits).success) == MAX_TXN_OPS
    with pytest.raises(ValueError, match="129"):
        to_request(Txn(then=(*fits.then, Get(b"more"))))


@pytest.mark.parametrize(
    ("txn", "read_only"),
    [
        (Txn(then=(Get(b"a"),)), True),
        (Txn(then=(Txn(then=(Get(b"a"),)),)), True),
        (Txn(then=(Get(b"a"),), otherwise=(Delete(b"a"),)), False),
        (Txn(then=(Txn(otherwise=(Put(b"a", b""),)),)), False),
    ],
)
def test_a_transaction_that_only_reads_is_not_sent(txn: Txn, read_only: bool) -> None:
    assert txn.is_read_only is read_only
    with pytest.raises(ValueError, match="can crash etcd") if read_only else nullcontext():
        to_request(txn)


@pytest.mark.parametrize(
    ("prefix", "end"), [(b"/a/", b"/a0"), (b"a\xff", b"b"), (b"\xff\xff", b"\x00"), (b"", b"\x00")]
)
def test_the_end_of_a_prefix_is_the_first_key_after_it(prefix: bytes, end: bytes) -> None:
    assert prefix_end(prefix) == end
