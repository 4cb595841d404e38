"""Places where a test breaks the process on purpose. Off, one costs a lookup in an empty dict.

TENURE_FAILPOINTS="worker.after_model=2#kill9;checkpoint.before_commit=sleep(3000);tools.after_effect=0.3*error(UNKNOWN)"

setting  = point ";" …            point  = name "=" term "->" …   |   switch (a name alone)
term     = [ N "#" | P "*" ] action        N: only the N-th hit; P: with this probability
action   = kill9                   SIGKILL to this process
| freeze                  SIGSTOP to this process, until somebody sends SIGCONT
| sleep(ms)               wait
| error(CODE)             raise what this gRPC code or reason stands for: UNAVAILABLE, STALE_EPOCH …
| touch(path)             create a file: tells the test that the place was reached
| wait(path)              wait until the file exists: lets the test say when to go on
"""

from __future__ import annotations

import asyncio
import os
import random
import re
import signal
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

import grpc

from tenure.domain import errors
from tenure.runtime import metrics
from tenure.runtime.failpoint_names import FAILPOINTS, SWITCHES
from tenure.runtime.settings import ConfigurationError
from tenure.runtime.status import CODES, from_plain

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping

_TERM: Final = re.compile(
    r"(?:(?P<nth>[1-9]\d*)#|(?P<odds>[01]?\.\d+|[01])\*)?(?P<action>[a-z0-9]+)(?:\((?P<argument>.*)\))?"
)
_POLL_SECONDS: Final = 0.01


@dataclass(slots=True)
class _Term:
    """One action and when it is taken."""

    act: Callable[[str], Awaitable[None]]
    argument: str
    nth: int | None
    odds: float
    hits: int = 0

    async def hit(self) -> None:
        self.hits += 1
        if self.nth is not None and self.hits != self.nth:
            return
        if self.odds < 1 and random.random() >= self.odds:
            return
        await self.act(self.argument)


@dataclass(slots=True)
class _Armed:
    """One failpoint as set."""

    name: str
    terms: list[_Term] = field(default_factory=list)

    async def hit(self) -> None:
        metrics.count("tenure_failpoint_hits_total", failpoint=self.name)
        for term in self.terms:
            await term.hit()


_armed: dict[str, _Armed] = {}
_enabled: set[str] = set()


async def failpoint(name: str) -> None:
    """The place `name`. Does nothing unless it was armed; the name must be declared in `failpoint_names`."""
    armed = _armed.get(name)
    if armed is not None:
        await armed.hit()


def failpoint_enabled(switch: str) -> bool:
    """Whether a switch is on: for the guards that a test turns off to see itself fail."""
    return switch in _enabled


def arm(setting: str) -> None:
    """Set all failpoints from TENURE_FAILPOINTS, "" for none. Raises ConfigurationError with all that is wrong."""
    problems: list[str] = []
    armed: dict[str, _Armed] = {}
    enabled: set[str] = set()
    for point in filter(None, (part.strip() for part in setting.split(";"))):
        name, separator, terms = (part.strip() for part in point.partition("="))
        known: Mapping[str, str] = FAILPOINTS if separator else SWITCHES
        if name not in known:
            problems.append(f"TENURE_FAILPOINTS: {name} is no {'failpoint' if separator else 'switch'}")
        elif not separator:
            enabled.add(name)
        else:
            armed[name] = _Armed(name, list(_terms(name, terms, problems)))
    if problems:
        raise ConfigurationError(problems)
    disarm()
    _armed.update(armed)
    _enabled.update(enabled)


def disarm() -> None:
    """All off."""
    _armed.clear()
    _enabled.clear()


def _terms(name: str, text: str, problems: list[str]) -> Iterator[_Term]:
    for part in text.split("->"):
        match = _TERM.fullmatch(part.strip())
        act = _ACTIONS.get(match["action"]) if match else None
        if match is None or act is None:
            problems.append(f"TENURE_FAILPOINTS: {name}: {part.strip()!r} is no action")
            continue
        action, argument = match["action"], match["argument"] or ""
        if not _ARGUMENT[action](argument):
            problems.append(f"TENURE_FAILPOINTS: {name}: {action} cannot take {argument!r}")
            continue
        yield _Term(act, argument, int(match["nth"]) if match["nth"] else None, float(match["odds"] or 1))


async def _kill9(_argument: str) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


async def _freeze(_argument: str) -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


async def _sleep(milliseconds: str) -> None:
    await asyncio.sleep(int(milliseconds) / 1000)


async def _error(name: str) -> None:
    code, reason = _codes()[name]
    raise from_plain(code, reason, "a failpoint was armed here", {})


async def _touch(path: str) -> None:
    await asyncio.to_thread(Path(path).touch)


async def _wait(path: str) -> None:
    while not await asyncio.to_thread(Path(path).exists):  # noqa: ASYNC110  another process makes the file
        await asyncio.sleep(_POLL_SECONDS)


def _codes() -> dict[str, tuple[int, str]]:
    """What `error(…)` may name: a gRPC code, or the default reason of one of our errors."""
    by_code = {code.name: (code.value[0], code.name) for code in grpc.StatusCode if code is not grpc.StatusCode.OK}
    return {**by_code, **{kind.default_reason: (CODES[kind].value[0], kind.default_reason) for kind in errors.LEAVES}}


_ACTIONS: Final[dict[str, Callable[[str], Awaitable[None]]]] = {
    "kill9": _kill9,
    "freeze": _freeze,
    "sleep": _sleep,
    "error": _error,
    "touch": _touch,
    "wait": _wait,
}
_ARGUMENT: Final[dict[str, Callable[[str], bool]]] = {
    "kill9": lambda text: not text,
    "freeze": lambda text: not text,
    "sleep": str.isdecimal,
    "error": lambda text: text in _codes(),
    "touch": bool,
    "wait": bool,
}
