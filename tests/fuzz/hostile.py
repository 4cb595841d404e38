"""Values that break programs, by the type of a field."""

from __future__ import annotations

import math
from typing import Any, Final

from google.protobuf.descriptor import FieldDescriptor as Field
from hypothesis import strategies as st

LONG: Final = 70_000
"""Longer than most bounds of a name, shorter than a message of gRPC."""

TEXTS: Final = (
    "",
    " ",
    "\x00",
    "a\x00b",
    "\x1b[2J\x1b]0;title\x07",
    "\x1f",
    "\x7f",
    "\r\n",
    "../../etc/passwd",
    "/",
    ".",
    "%00%s%n{0}{{x}}$HOME",
    "'; drop table ledger.tasks; --",
    "\ufeff\u202e\u2028\u0000",
    "\ufffe\uffff\U0010ffff",
    "e\u0301" * 40,
    "\u0130\u0131\u00df",
    "NaN",
    "null",
    "[]",
    '{"a": NaN}',
    '{"a": 1, "a": 2}',
    '"\\ud83d"',
    '{"\\ud83d": "\\u0000"}',
    '{"a": 1e999, "b": ' + "9" * 5000 + "}",
    "[" * 3000,
    "00000000-0000-0000-0000-000000000000",
    "FFFFFFFF-FFFF-FFFF-FFFF-FFFFFFFFFFFF",
    "{00000000-0000-7000-8000-00000000000}",
    "0.0",
    "999999999999999.999999999999999",
    "1.0\n",
    "\u0661.\u0660",
    "x" * 64,
    "x" * 65,
    "x" * 200,
    "x" * 201,
    "x" * LONG,
    "\u20ac" * (LONG // 3),
    "\x00" * 600,
)

BYTES: Final = (b"", b"\x00", b"\xff\xfe\xed\xa0\xbd", b"\xed\xa0\x80", b"x" * LONG, bytes(range(256)))
INT32: Final = (0, 1, -1, 2**31 - 1, -(2**31), 999_999_999, 10_001)
INT64: Final = (*INT32, 2**63 - 1, -(2**63), 2**53 + 1, 2**40, 2**62, 10**12, 10**12 + 1)
DOUBLES: Final = (0.0, -0.0, -1.0, math.nan, math.inf, -math.inf, 5e-324, 1.7e308, 1e-9)
ENUMS: Final = (0, -1, 99, 2**31 - 1, -(2**31))
SECONDS: Final = (0, -1, 2**63 - 1, -(2**63), 315_576_000_001, 253_402_300_800, -62_135_596_801, 10**10, 86_401)
NANOS: Final = (0, 1, -1, 999_999_999, 1_000_000_000, 2**31 - 1, -(2**31))

_INTS32: Final = (Field.CPPTYPE_INT32, Field.CPPTYPE_UINT32)
_INTS64: Final = (Field.CPPTYPE_INT64, Field.CPPTYPE_UINT64)


def hostile_value(field: Field) -> st.SearchStrategy[Any]:
    """A value of the field's type that no friend sends; for everything but messages."""
    if field.cpp_type in _INTS32:
        return st.sampled_from(INT32)
    if field.cpp_type in _INTS64:
        return st.sampled_from(INT64)
    if field.cpp_type in (Field.CPPTYPE_DOUBLE, Field.CPPTYPE_FLOAT):
        return st.sampled_from(DOUBLES)
    if field.cpp_type == Field.CPPTYPE_BOOL:
        return st.booleans()
    if field.cpp_type == Field.CPPTYPE_ENUM:
        return st.sampled_from(ENUMS)
    return st.sampled_from(BYTES if field.type == Field.TYPE_BYTES else TEXTS)
