"""How many examples generated tests draw: few in `make test`, TENURE_EXAMPLES times as many in `make faults`."""

from __future__ import annotations

import os
from typing import Final

FACTOR: Final = int(os.environ.get("TENURE_EXAMPLES", "1"))


def examples(default: int) -> int:
    """The number of examples of a test that draws `default` in `make test`. Mark such a test `fuzz`."""
    return default * FACTOR
