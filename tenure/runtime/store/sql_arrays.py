"""Array parameters of the hot statements, packed at once.

psycopg packs a list element by element in Python, which was measured to cost as much as all other parameters of a
commit. It also chooses the type of an array by its values: each mixture would need its own prepared statement. Format:
https://www.postgresql.org/docs/current/protocol-overview.html and `array_recv` in arrayfuncs.c.

psycopg knows the columns of this module on every connection.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from itertools import chain, repeat
from typing import ClassVar, Final, TypeVar
from uuid import UUID

import psycopg
from psycopg.adapt import Dumper
from psycopg.pq import Format

T = TypeVar("T")
_HEAD: Final = struct.Struct(">iiI")  # dimensions, has nulls, type of the elements
_DIMENSION: Final = struct.Struct(">ii")  # length, lowest index
_LENGTH: Final = struct.Struct(">i")
_NULL: Final = _LENGTH.pack(-1)


class Column(list[T]):
    """A list that knows its type in the database."""

    element_oid: ClassVar[int]
    array_oid: ClassVar[int]

    def head(self) -> bytes:
        if not self:
            return _HEAD.pack(0, 0, self.element_oid)
        return _HEAD.pack(1, 0, self.element_oid) + _DIMENSION.pack(len(self), 1)

    def packed(self) -> bytes:
        raise NotImplementedError


class Int8s(Column[int]):
    """bigint[]"""

    element_oid, array_oid = 20, 1016

    def packed(self) -> bytes:
        return self.head() + struct.pack(f">{'iq' * len(self)}", *chain.from_iterable(zip(repeat(8), self)))


class Int4s(Column[int]):
    """int[]"""

    element_oid, array_oid = 23, 1007

    def packed(self) -> bytes:
        return self.head() + struct.pack(f">{'ii' * len(self)}", *chain.from_iterable(zip(repeat(4), self)))


class Uuids(Column[UUID]):
    """uuid[]"""

    element_oid, array_oid = 2950, 2951

    def packed(self) -> bytes:
        return self.head() + b"".join(b"\x00\x00\x00\x10" + one.bytes for one in self)


class Numbers(Column[tuple[int, ...]]):
    """bigint[][]: rows of as many numbers each. A bool is 0 or 1."""

    element_oid, array_oid = 20, 1016

    def packed(self) -> bytes:
        if not self:
            return self.head()
        head = _HEAD.pack(2, 0, self.element_oid) + _DIMENSION.pack(len(self), 1) + _DIMENSION.pack(len(self[0]), 1)
        numbers = list(chain.from_iterable(self))
        return head + _numbers(len(numbers)).pack(*chain.from_iterable(zip(repeat(8), numbers)))


class Bools(Column[bool]):
    """boolean[]"""

    element_oid, array_oid = 16, 1000

    def packed(self) -> bytes:
        return self.head() + b"".join(b"\x00\x00\x00\x01\x01" if one else b"\x00\x00\x00\x01\x00" for one in self)


class Byteas(Column[bytes]):
    """bytea[]"""

    element_oid, array_oid = 17, 1001

    def packed(self) -> bytes:
        return self.head() + b"".join(chain.from_iterable((_LENGTH.pack(len(one)), one) for one in self))


class Texts(Column[str]):
    """text[]"""

    element_oid, array_oid = 25, 1009

    def packed(self) -> bytes:
        encoded = [one.encode() for one in self]
        return self.head() + b"".join(chain.from_iterable((_LENGTH.pack(len(one)), one) for one in encoded))


class OptionalTexts(Column[str | None]):
    """text[] whose elements may be null"""

    element_oid, array_oid = 25, 1009

    def packed(self) -> bytes:
        return self.head() + b"".join(map(_optional, self))


def _optional(text: str | None) -> bytes:
    if text is None:
        return _NULL
    encoded = text.encode()
    return _LENGTH.pack(len(encoded)) + encoded


@lru_cache(maxsize=256)
def _numbers(count: int) -> struct.Struct:
    return struct.Struct(f">{'iq' * count}")


class _ColumnDumper(Dumper):
    format = Format.BINARY

    def dump(self, obj: Column[object]) -> bytes:
        return obj.packed()


for _column in (Int4s, Int8s, Numbers, Bools, Byteas, Texts, OptionalTexts, Uuids):
    psycopg.adapters.register_dumper(
        _column, type(f"{_column.__name__}Dumper", (_ColumnDumper,), {"oid": _column.array_oid})
    )
