"""No test gives an owner, a runner or a lease a life that a machine that stands still for a moment ends."""

from __future__ import annotations

import re
from typing import Final

from tests.contract.sources import texts
from tests.support.patience import SHORT_LIFE_SECONDS

LIFE: Final = re.compile(
    r"(?:ttl|lease|progress_timeout)_seconds[\"']?\s*[:=]\s*[\"']?(?P<seconds>[\d.]+)", re.IGNORECASE
)
LAPSES_ARE_PLANNED: Final = ("tests/fault/suite/", "tests/unit/", "tests/contract/")
"""Where lives end at random and nothing may break, and where no process lives."""


def test_lives_outlast_a_standstill() -> None:
    short = [
        f"{file}: {found.group()}"
        for file, text in texts("tests", "tenure/testing").items()
        if not file.startswith(LAPSES_ARE_PLANNED)
        for found in LIFE.finditer(text)
        if float(found["seconds"]) < SHORT_LIFE_SECONDS
    ]
    assert not short, f"use SHORT_LIFE or SHORT_LIFE_SECONDS (tests/support/patience.py): {short}"
