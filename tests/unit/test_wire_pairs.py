"""Each pair of a value and a message: random values come back, and a field that has no counterpart is refused."""

from __future__ import annotations

import subprocess
import sys
import typing
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from functools import cache
from importlib import import_module
from types import NoneType, UnionType
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tenure.domain.budget import Prices, Tier
from tenure.domain.entries import ContentBlock, ControlFailure, ControlStep
from tenure.domain.fencing import Audience
from tenure.domain.task import Priority
from tenure.domain.texts import KeptContent
from tenure.domain.waits import EscalationAction, EscalationStep
from tenure.v1 import task_pb2
from tenure.wire.codec import CODECS, FUNCTIONS, Codec, PairOptions, fields_of, reader, writer
from tests.contract.sources import ROOT, files_with
from tests.support.examples import examples

MODULES: Final = [
    file.removesuffix(".py").replace("/", ".")
    for file in files_with(r"^from tenure\.wire\.codec import .*\b(?:pair|reader|writer|union)\b")
]
for module in MODULES:
    import_module(module)  # each makes its pairs
import_module("services.gateway.http.routes")  # makes those of its bodies, queries and answers
ALL: Final = tuple(CODECS)
BOTH_WAYS: Final = {key: functions for key, functions in FUNCTIONS.items() if None not in functions}
TEXTS: Final = st.text("a\u00e9\0 ", max_size=6)
SECONDS: Final = st.integers(0, 10**9).map(lambda eighths: eighths / 8)
SCALARS: Final[dict[Any, st.SearchStrategy[Any]]] = {
    str: TEXTS,
    bytes: st.binary(max_size=4),
    bool: st.booleans(),
    int: st.integers(0, 2**31 - 1),
    float: SECONDS,
    datetime: st.datetimes(datetime(1970, 1, 2), datetime(2200, 1, 1), timezones=st.just(UTC)),  # noqa: DTZ001
}


def targets(action: EscalationAction) -> st.SearchStrategy[str]:
    if action in {EscalationAction.EVENT_ONLY, EscalationAction.CLOSE_OUT}:
        return st.just("")
    return st.sampled_from([tier.name for tier in Priority]) if action is EscalationAction.PRIORITY else TEXTS


def escalation_steps(action: EscalationAction) -> st.SearchStrategy[EscalationStep]:
    return st.builds(EscalationStep, SECONDS, st.just(action), targets(action))


ENDS: Final[st.SearchStrategy[dict[str, Any]]] = st.one_of(
    st.builds(dict, result_json=TEXTS),
    st.builds(dict, failure=st.deferred(lambda: made(ControlFailure))),
    st.builds(dict, kept=st.deferred(lambda: made(KeptContent))),
)
SPECIAL: Final[dict[Any, st.SearchStrategy[Any]]] = {
    tuple[tuple[str, str], ...]: st.dictionaries(TEXTS, TEXTS).map(lambda labels: tuple(sorted(labels.items()))),
    tuple[ContentBlock, ...]: st.lists(st.builds(dict, type=st.just("text"), text=TEXTS)).map(tuple),
    tuple[Audience | None, ...]: st.lists(st.sampled_from(Audience)).map(tuple),
    EscalationStep: st.sampled_from(EscalationAction).flatmap(escalation_steps),
    ControlStep: st.builds(lambda name, end: ControlStep(name, **end), TEXTS, ENDS),
    Prices: st.deferred(lambda: st.lists(made(Tier), min_size=1).map(lambda tiers: Prices(tuple(tiers)))),
}
"""Values of types whose fields depend on each other, or hold anything."""


@cache
def value_of(hint: Any, *, is_set: bool = False) -> st.SearchStrategy[Any]:
    """Values of a type hint. `is_set`: none that stands for an unset field."""
    kinds, origin = typing.get_args(hint), typing.get_origin(hint)
    if hint in SCALARS:
        return SCALARS[hint].filter(bool) if is_set else SCALARS[hint]
    if hint in SPECIAL:
        return SPECIAL[hint]
    if NoneType in kinds:
        return st.none() | st.one_of([value_of(kind, is_set=is_set) for kind in kinds if kind is not NoneType])
    if origin is tuple:
        return st.lists(value_of(kinds[0]), min_size=is_set, max_size=2).map(tuple)
    if origin in {UnionType, typing.Union}:
        return st.one_of([value_of(kind) for kind in kinds])
    return st.sampled_from(hint) if issubclass(hint, Enum) else made(hint)


def made(kind: Any) -> st.SearchStrategy[Any]:
    """Values of a dataclass or a NamedTuple; fields that its pair skips keep their defaults."""
    options = next((codec.options for codec in ALL if codec.value is kind), PairOptions())
    skipped, type_of = options.get("skip", "").split(), typing.get_type_hints(kind)
    return st.builds(
        kind,
        **{
            name: value_of(type_of[name], is_set=options.get("defaults", False) and (bool(default) or default is None))
            for name, default in fields_of(kind)
            if name not in skipped
        },
    )


@pytest.mark.parametrize("key", BOTH_WAYS, ids=lambda key: f"{getattr(key[0], '__name__', 'union')}-{key[1]}")
@settings(deadline=None, max_examples=examples(6))
@given(data=st.data())
def test_values_survive_the_wire(key: tuple[Any, str], data: st.DataObject) -> None:
    to_wire, to_domain = BOTH_WAYS[key]
    assert to_wire is not None
    assert to_domain is not None
    value = data.draw(value_of(key[0]))
    message = to_wire(value)
    assert to_domain(type(message).FromString(message.SerializeToString())) == value


@pytest.mark.parametrize("codec", ALL, ids=lambda codec: f"{codec.value.__name__}-{codec.message.__name__}")
def test_every_field_is_mapped_or_skipped(codec: Codec[Any, Any]) -> None:
    assert codec.source().startswith("def convert(")


ALONE: Final = """
import os, sys
from importlib import import_module

for name in sys.argv[1:]:
    if child := os.fork():
        os.waitpid(child, 0)
        continue
    import_module(name)
    from tenure.wire.codec import CODECS
    for codec in CODECS:
        try:
            codec.source()
        except TypeError as error:
            print(f"{name}: {error}", flush=True)
    os._exit(0)
"""


def test_modules_import_the_pairs_of_their_parts() -> None:
    """Else a pair works only in a process that happens to have imported its parts."""
    libraries = [module for module in MODULES if module.startswith("tenure.")]  # a service imports all of its own
    program = [sys.executable, "-c", ALONE, *libraries]
    found = subprocess.run(program, cwd=ROOT, capture_output=True, text=True, check=True)
    assert (found.stdout, found.stderr) == ("", "")


@dataclass
class Newer:
    """A function and its input, with a field that the message does not have."""

    function: str
    input_json: str
    newer: str = ""


@dataclass
class Older:
    """A function, without its input."""

    function: str


def test_field_without_counterpart_is_refused() -> None:
    with pytest.raises(TypeError, match=r"ControlWork has no field for Newer\.newer: map it, or add it to `skip`"):
        writer(Newer, task_pb2.ControlWork)(Newer("f", ""))
    with pytest.raises(TypeError, match=r"Older has no field for ControlWork\.input_json"):
        reader(Older, task_pb2.ControlWork)(task_pb2.ControlWork())
    with pytest.raises(TypeError, match=r"Older-ControlWork skips inptu_json, which neither has"):
        reader(Older, task_pb2.ControlWork, skip="inptu_json input_json")(task_pb2.ControlWork())
