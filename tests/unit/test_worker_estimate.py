"""The bound of a prompt's tokens: never below what is billed, and not absurdly above."""

from __future__ import annotations

import base64
import json
import random
import re
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devstack.simulator.tokens import count_request, tokens_of_bytes
from services.worker.context_window import InputEstimate, with_margin
from tenure.domain.texts import text_tokens

words = st.text(st.characters(codec="utf-8"), min_size=1, max_size=80)
values = st.recursive(st.none() | st.booleans() | st.integers() | words, lambda inner: st.lists(inner, max_size=4))
texts = st.builds(lambda text: {"type": "text", "text": text}, words)
uses = st.builds(lambda value: {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {"value": value}}, values)
results = st.builds(
    lambda text: {"type": "tool_result", "tool_use_id": "toolu_1", "content": text, "is_error": False}, words
)
messages = st.lists(
    st.builds(
        lambda role, content: {"role": role, "content": content},
        st.sampled_from(["user", "assistant"]),
        st.lists(texts | uses | results, min_size=1, max_size=4),
    ),
    max_size=5,
)
tools = st.lists(
    st.builds(
        lambda name, text: {"name": name, "description": text, "input_schema": {"type": "object", "title": text}},
        words,
        words,
    ),
    max_size=3,
)


@given(st.just("") | words, tools, messages, messages)
def test_bound_is_never_below_the_simulator(system: Any, tools: Any, messages: Any, to_come: Any) -> None:
    body = {"tools": tools, "system": system, "messages": [*messages, *to_come]}
    assert InputEstimate(system, tools).upper_bound(messages, to_come) >= count_request(body)


@given(st.lists(words, min_size=1, max_size=5), st.integers(0, 5))
def test_count_of_the_provider_is_used(texts: list[Any], known: int) -> None:
    said = [{"role": "user", "content": [{"type": "text", "text": text}]} for text in texts]
    known = min(known, len(said))
    counted = count_request({"messages": said[:known]})
    bound = InputEstimate("", ()).upper_bound(said, counted=(known, counted))
    assert bound >= count_request({"messages": said})
    assert bound == counted or known < len(said)


SIZE: Final = 20_000
TEXTS: Final = {
    "german": "Die Würde des Menschen ist unantastbar. Sie zu achten und zu schützen ist Verpflichtung. ",
    "russian": "Все люди рождаются свободными и равными в своем достоинстве. ",  # noqa: RUF001  Russian letters
    "chinese": "人人生而自由,在尊严和权利上一律平等。",
    "japanese": "すべての人間は、生まれながらにして自由であり、かつ、尊厳と権利とについて平等である。",
    "hindi": "सभी मनुष्यों को गौरव और अधिकारों के मामले में जन्मजात स्वतन्त्रता और समानता प्राप्त है। ",
    "arabic": "يولد جميع الناس أحراراً متساوين في الكرامة والحقوق. ",
    "thai": "มนุษย์ทั้งหลายเกิดมามีอิสระและเสมอภาคกันในเกียรติศักดิ์และสิทธิ ",
}


def samples() -> Iterator[tuple[str, str]]:
    """Yields texts of many kinds with their names, the same in every run."""
    dice = random.Random(1)
    root = Path(__file__).parents[2]
    yield "prose", "".join((root / name).read_text() for name in ("README.md", "ARCHITECTURE.md"))
    yield "python", "".join(path.read_text() for path in sorted((root / "tenure" / "domain").glob("*.py"))[:15])
    rows = [{"id": number, "name": f"item {number}", "price": dice.random(), "tags": ["a"]} for number in range(500)]
    yield "json", json.dumps(rows, separators=(",", ":"))
    yield "json, indented", json.dumps(rows, indent=2)
    yield "numbers", "\n".join(",".join(str(dice.randint(0, 10**6)) for _ in range(8)) for _ in range(500))
    yield "uuids", "\n".join(str(uuid.UUID(int=dice.getrandbits(128))) for _ in range(500))
    yield "hex", dice.randbytes(SIZE // 2).hex()
    yield "base64", base64.b64encode(dice.randbytes(SIZE)).decode()
    yield "random letters", "".join(dice.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(SIZE))
    yield "random ascii", "".join(chr(dice.randint(33, 126)) for _ in range(SIZE))
    yield "emoji", "".join(dice.choice("😀🎉🚀🧪🤖🔥👩") for _ in range(SIZE // 8))
    yield from ((name, text * (SIZE // len(text))) for name, text in TEXTS.items())


KINDS = dict(samples())


@pytest.mark.parametrize("kind", KINDS)
def test_the_bound_stays_near(kind: Any) -> None:
    assert 1.0 <= text_tokens(KINDS[kind]) / tokens_of_bytes(len(KINDS[kind].encode())) < 4.5


# What Claude's published tokenizer makes of such text, in bytes for a token, measured in commit 790a6c75.
DENSE = {"numbers": 1.97, "uuids": 1.48, "hex": 1.72, "base64": 1.42, "thai": 1.62, "arabic": 2.06, "chinese": 2.55}


@pytest.mark.parametrize("kind", DENSE)
def test_dense_text_has_a_higher_bound(kind: Any) -> None:
    assert text_tokens(KINDS[kind]) >= len(KINDS[kind].encode()) / DENSE[kind]


def test_a_count_beforehand_gets_a_margin() -> None:
    for counted in [random.randint(0, 10**6) for _ in range(20)]:
        assert counted * 1.02 <= with_margin(counted) <= counted * 1.02 + 17


PIECES = re.compile(rb"[A-Za-z][a-z]{0,4}|[0-9]{1,2}|[!-/:-@\[-`{-~]")
KEYS = re.compile(rb"[a-z]{16}")


@given(st.text(st.sampled_from('aaaaaaaazAAZ0019 !~\n"\\') | st.characters(codec="ascii"), max_size=200))
def test_a_bound_counts_pieces_as_the_expressions_do(text: str) -> None:
    encoded = text.encode()
    pieces = len(PIECES.findall(encoded)) + 6 * len(KEYS.findall(encoded))
    assert text_tokens(text) == max(pieces + pieces // 12, -(-len(encoded) // 3))
