"""Columns, described once by the class of their rows: the lists of columns in statements, and the arrays of batches.

    class TaskRow:
        task_id: Uuid                  # read as text
        sequence: Stepped[int]         # written by the statement of steps
        locked_at: Unlisted[datetime]  # an expression of the statement, after the list of columns

A class has the fields in the order of the columns that a statement reads. The functions below return parts for
`tenure.runtime.store.sql.Queries`: SQL that stands in the place of its name in braces.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import is_dataclass
from datetime import datetime
from operator import attrgetter
from types import NoneType, UnionType
from typing import Annotated, Any, Final, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

from tenure.runtime.store.sql_arrays import Byteas, Column, Numbers, OptionalTexts, Texts, UuidTexts

T = TypeVar("T")


class SqlType(NamedTuple):
    """The type of a column that statements take as text, and the cast with which they read it."""

    name: str
    read: str = "::text"


UNLISTED: Final = "unlisted"
ADDED: Final = "added"
STEP: Final = "step"
ADVANCE: Final = "advance"
MOVE: Final = "move"
Unlisted = Annotated[T, UNLISTED]
"""Not in the list of columns: an expression of the statement, or a value in memory."""
Added = Annotated[T, ADDED]
"""Added to the column instead of replacing it."""
Stepped = Annotated[T, STEP]
Advanced = Annotated[T, STEP, ADVANCE]
"""Stepped, and changed by every commit, also by one without a model call and a tool call."""
Moved = Annotated[T, MOVE]
_UUID: Final = SqlType("uuid")
Uuid = Annotated[str, _UUID]
Jsonb = Annotated[str, SqlType("jsonb")]
Xid = Annotated[int, SqlType("xid8", "::text::bigint")]

SEPARATOR: Final = "\x1f"
"""Separates the texts of one row in one text: Postgres has no arrays of arrays of different lengths."""


class _Field(NamedTuple):
    """A column. `path`: of the attribute; `plain`: its type without None and marks."""

    name: str
    path: str
    plain: type
    marks: frozenset[Any]
    optional: bool

    @property
    def sql_type(self) -> SqlType | None:
        return next((mark for mark in self.marks if isinstance(mark, SqlType)), None)

    @property
    def is_number(self) -> bool:
        return self.plain in {int, bool}


def _fields(row_class: type, prefix: str = "") -> Iterator[_Field]:
    for name, hint in get_type_hints(row_class, include_extras=True).items():
        field = _Field(name, f"{prefix}{name}", *_unwrapped(hint))
        if is_dataclass(field.plain) and UNLISTED not in field.marks:
            yield from _fields(field.plain, f"{field.path}.")
        else:
            yield field


def _unwrapped(hint: Any) -> tuple[type, frozenset[Any], bool]:
    if get_origin(hint) is Annotated:
        plain, marks, optional = _unwrapped(get_args(hint)[0])
        return plain, marks | set(hint.__metadata__), optional
    if get_origin(hint) in {Union, UnionType}:
        plain, marks, _ = _unwrapped(next(one for one in get_args(hint) if one is not NoneType))
        return plain, marks, True
    return get_origin(hint) or hint, frozenset(), False


def select_list(row_class: type, alias: str) -> str:
    """Returns the columns that a statement reads for a row, of the table `alias`. Raises ValueError when one of them
    comes after an unlisted field: the row would get its values in another order.
    """
    fields = list(_fields(row_class))
    listed = [field for field in fields if UNLISTED not in field.marks]
    if fields[: len(listed)] != listed:
        raise ValueError(f"{row_class.__name__}: a listed column comes after an unlisted field")
    return ", ".join(f"{alias}.{field.name}{field.sql_type.read if field.sql_type else ''}" for field in listed)


class RowArrays:
    """Rows as parameters of a statement: an array for each column of texts or bytes, and one array for all numbers.

    `key`: the column by which an update finds its rows. `mark`: of the columns that the statement writes; "": all.
    `parts`, where the arrays are the rows `c`, each with its ordinality `i`, and all numbers are `n`:

    - `{name.arrays}`, `{name.names}`: the arrays and the names of their columns
    - `{name.set}`: the assignments of an update
    - `{name.columns}`, `{name.values}`: the columns and values of an insert
    - `{name.<column>}`: one value
    """

    def __init__(self, name: str, row_class: type, *, mark: str = "", key: str = "", prefix: str = "") -> None:
        fields = [field for field in _fields(row_class) if not mark or mark in field.marks or field.name == key]
        self._paths = [field.path for field in fields]
        numbers = [field for field in fields if field.is_number]
        arrays = [field for field in fields if not field.is_number]
        self._numbers_name, self._numbers_of = f"{prefix}numbers", attrgetter(*(field.path for field in numbers))
        self._arrays = [(prefix + field.name, *_packing(field)) for field in arrays]
        places = {field.name: place for place, field in enumerate(numbers, 1)}
        values = {field.name: _unpacked(field, places.get(field.name, 0)) for field in fields}
        added = {field.name for field in fields if ADDED in field.marks}
        self.parts = {f"{name}.{column}": value for column, value in values.items()} | {
            f"{name}.arrays": ", ".join(f"%({prefix}{field.name})b::{_array_type(field)}" for field in arrays),
            f"{name}.names": ", ".join(field.name for field in arrays),
            f"{name}.columns": ", ".join(values),
            f"{name}.values": ", ".join(values.values()),
            f"{name}.set": ", ".join(
                f"{column} = {f'{column} + ' * (column in added)}{value}"
                for column, value in values.items()
                if column != key
            ),
        }

    def values_beyond(self, fewer: RowArrays) -> Callable[[Any], tuple[Any, ...]]:
        """Returns a function of a row: its values of the columns that `fewer` does not write."""
        return attrgetter(*(path for path in self._paths if path not in fewer._paths))

    def of(self, rows: Sequence[Any]) -> dict[str, Column[Any]]:
        """Returns the parameters by name."""
        arrays: dict[str, Column[Any]] = {self._numbers_name: Numbers(map(self._numbers_of, rows))}
        for name, column, value_of, text_of in self._arrays:
            values = map(value_of, rows)
            arrays[name] = column(values if text_of is None else map(text_of, values))
        return arrays


def _array_type(field: _Field) -> str:
    cast = "bytea[]" if field.plain is bytes else "text[]"
    if field.sql_type == _UUID:
        return "uuid[]"
    return f"{cast}::{field.sql_type.name}[]" if field.sql_type else cast


def _packing(field: _Field) -> tuple[type[Column[Any]], Callable[[Any], Any], Callable[[Any], Any] | None]:
    """Returns the column of a field, how a row has its value, and how the value is a text; None: it is one."""
    value_of = attrgetter(field.path)
    if field.sql_type == _UUID:
        return UuidTexts, value_of, None
    if field.optional and field.plain is not datetime:
        return OptionalTexts, value_of, _optional_joined if field.plain is tuple else None
    texts: dict[type, Callable[[Any], str]] = {datetime: _moment_text, tuple: SEPARATOR.join}
    return Byteas if field.plain is bytes else Texts, value_of, texts.get(field.plain)


def _moment_text(moment: datetime | None) -> str:
    return "" if moment is None else moment.isoformat()


def _optional_joined(texts: Sequence[str] | None) -> str | None:
    return None if texts is None else SEPARATOR.join(texts)


def _unpacked(field: _Field, place: int) -> str:
    if field.is_number:
        return f"n[i][{place}]{' = 1' * (field.plain is bool)}"
    if field.plain is datetime:
        return f"nullif(c.{field.name}, '')::timestamptz"
    if field.plain is tuple:
        return f"string_to_array(c.{field.name}, e'\\x1f')"
    return f"c.{field.name}"
