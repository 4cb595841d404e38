"""A person who decides on a text sees every character of it, or its number."""

from __future__ import annotations

import pytest

from tenure.cli.answering import wait_text
from tenure.domain.texts import visible_text
from tenure.v1 import task_pb2

UNSEEN = "\u200b\u200c\u200d\u2060\u2062\u00ad\ufeff\u202e\u2066\u061c\u3164\ufe0f\u00a0\u2028\U000e0041\x1b"


@pytest.mark.parametrize("char", UNSEEN)
def test_invisible_characters_are_shown_as_numbers(char: str) -> None:
    assert visible_text(f"pay{char}pal.com") == f"pay\\u{ord(char):04x}pal.com"


def test_visible_characters_are_kept() -> None:
    text = "Zahle 5 € an Grüße & Co., 支払い, דולר, نقود\nand 👍"
    assert visible_text(text) == text


def test_a_command_shows_a_hostile_argument_as_it_is() -> None:
    wait = task_pb2.Wait(wait_id="w", tool="pay", arguments_json='{"to": "pay\u200bpal.com", "note": "\u202emoc"}')
    shown = wait_text(wait)
    assert '"to": "pay\\u200bpal.com"' in shown
    assert '"note": "\\u202emoc"' in shown
