"""A page token is taken whole or refused: what follows its base64 is not left out."""

from __future__ import annotations

import pytest

from services.checkpoint.page_tokens import read_token, write_token
from tenure.domain.errors import InvalidRequest

TASK = "01a22278-014a-7000-8000-000000000000"
PLACES = [f"2026-11-29T08:00:00{'.' * bool(digits)}{'1' * digits}+00:00" for digits in range(7)]
"""As Postgres writes times: their lengths, and so the padding of their tokens, differ."""


@pytest.mark.parametrize("place", PLACES)
def test_a_changed_token_is_refused(place: str) -> None:
    token = write_token(place, TASK)
    assert read_token(token, ("", ""))[1] == TASK
    for changed in (f"{token}x", f"{token}=x", f"{token}\n", f"{token} ", f"x{token}", token[:-1]):
        with pytest.raises(InvalidRequest, match="page_token"):
            read_token(changed, ("", ""))
