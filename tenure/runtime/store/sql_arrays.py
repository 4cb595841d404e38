"""Array parameters of the hot statements, packed at once.

psycopg packs a list element by element in Python, which was measured to cost as much as all other parameters of a
commit. It also chooses the type of an array by its values: each mixture would need its own prepared statement. Format:
https://www.postgresql.org/docs/current/protocol-overview.html and `array_recv` in arrayfuncs.c.

`PreparedStatements` sends a column as it packs itself; psycopg also knows the columns on every connection.
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
_ROW_HEAD: Final = struct.Struct(">iiIii")  # the same of one dimension, with its length and lowest index
_DIMENSION: Final = struct.Struct(">ii")  # length, lowest index
_BOOLS: Final = (b"\x00\x00\x00\x01\x00", b"\x00\x00\x00\x01\x01")
_LENGTH: Final = struct.Struct(">i")
_NULL: Final = _LENGTH.pack(-1)


class Column(list[T]):
    """A list that knows its type in the database."""

    element_oid: ClassVar[int]
    array_oid: ClassVar[int]

    def packed(self) -> bytes:
        if not self:
            return _HEAD.pack(0, 0, self.element_oid)
        parts = [_ROW_HEAD.pack(1, 0, self.element_oid, len(self), 1)]
        self.pack_into(parts)
        return b"".join(parts)

    def pack_into(self, parts: list[bytes]) -> None:
        """Appends each element with its length before it. There is at least one."""
        raise NotImplementedError


class Int8s(Column[int]):
    """bigint[]"""

    element_oid, array_oid = 20, 1016

    def pack_into(self, parts: list[bytes]) -> None:
        parts.append(_numbers(len(self)).pack(*chain.from_iterable(zip(repeat(8), self))))


class Int4s(Column[int]):
    """int[]"""

    element_oid, array_oid = 23, 1007

    def pack_into(self, parts: list[bytes]) -> None:
        parts.append(struct.pack(f">{'ii' * len(self)}", *chain.from_iterable(zip(repeat(4), self))))


class Uuids(Column[UUID]):
    """uuid[]"""

    element_oid, array_oid = 2950, 2951

    def pack_into(self, parts: list[bytes]) -> None:
        for one in self:
            parts += (b"\x00\x00\x00\x10", one.bytes)


class UuidTexts(Column[str | None]):
    """uuid[] of ids as texts, which may be null. Raises ValueError for a text that is not a UUID."""

    element_oid, array_oid = 2950, 2951

    def pack_into(self, parts: list[bytes]) -> None:
        elements = ["ffffffff" if one is None else f"00000010{one}" for one in self]
        parts.append(bytes.fromhex("".join(elements).replace("-", "")))


class Numbers(Column[tuple[int, ...]]):
    """bigint[][]: rows of as many numbers each. A bool is 0 or 1."""

    element_oid, array_oid = 20, 1016

    def packed(self) -> bytes:
        if not self:
            return super().packed()
        head = _HEAD.pack(2, 0, self.element_oid) + _DIMENSION.pack(len(self), 1) + _DIMENSION.pack(len(self[0]), 1)
        numbers = list(chain.from_iterable(self))
        return head + _numbers(len(numbers)).pack(*chain.from_iterable(zip(repeat(8), numbers)))


class Bools(Column[bool]):
    """boolean[]"""

    element_oid, array_oid = 16, 1000

    def pack_into(self, parts: list[bytes]) -> None:
        parts.extend(map(_BOOLS.__getitem__, self))


class Byteas(Column[bytes]):
    """bytea[]"""

    element_oid, array_oid = 17, 1001

    def pack_into(self, parts: list[bytes]) -> None:
        parts += chain.from_iterable(zip(map(_LENGTH.pack, map(len, self)), self, strict=True))


class Texts(Column[str]):
    """text[]"""

    element_oid, array_oid = 25, 1009

    def pack_into(self, parts: list[bytes]) -> None:
        encoded = [one.encode() for one in self]
        parts += chain.from_iterable(zip(map(_LENGTH.pack, map(len, encoded)), encoded, strict=True))


class OptionalTexts(Column[str | None]):
    """text[] whose elements may be null"""

    element_oid, array_oid = 25, 1009

    def pack_into(self, parts: list[bytes]) -> None:
        for one in self:
            if one is None:
                parts.append(_NULL)
            else:
                encoded = one.encode()
                parts += (_LENGTH.pack(len(encoded)), encoded)


@lru_cache(maxsize=256)
def _numbers(count: int) -> struct.Struct:
    return struct.Struct(f">{'iq' * count}")


class _ColumnDumper(Dumper):
    format = Format.BINARY

    def dump(self, obj: Column[object]) -> bytes:
        return obj.packed()


for _column in (Int4s, Int8s, Numbers, Bools, Byteas, Texts, OptionalTexts, Uuids, UuidTexts):
    psycopg.adapters.register_dumper(
        _column, type(f"{_column.__name__}Dumper", (_ColumnDumper,), {"oid": _column.array_oid})
    )
