"""The arguments of a call that Tenure makes for another call, from a mapping in the config file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tenure.domain.json_pointers import value_at


def mapped_arguments(mapping: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the arguments. A text of the mapping that begins with `/` is a JSON pointer into `values`.

    Everything else is the value itself. Raises LookupError for a pointer to nothing.
    """
    document = dict(values)
    return {
        name: value_at(document, source) if isinstance(source, str) and source.startswith("/") else source
        for name, source in mapping.items()
    }
