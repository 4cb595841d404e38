"""Judges answers in a process of their own: a schema can make that take for ever, and a worker has other tasks."""

from __future__ import annotations

import asyncio
import json
import resource
import signal
import sys
from typing import Final

from tenure.domain.errors import Unavailable
from tenure.domain.result_schema import Judgement, judge

CPU_SECONDS: Final = 10
"""Of its processor time: what does not fit by then never will, however busy the machine is."""
LONGEST_SECONDS: Final = 120.0
"""Until the task is let go: the machine is too busy, and that is nobody's answer."""

_TOO_LONG: Final = "the answer could not be compared with the schema in time: give a simpler one"
_STOPPED: Final = frozenset({-signal.SIGXCPU, -signal.SIGKILL})
"""By the limit: by which of the two differs between systems."""

_COMMAND: Final = (sys.executable, "-P", "-m", "services.worker.judging")


async def judge_apart(schema_json: str, answer: str, *, cpu_seconds: int = CPU_SECONDS) -> Judgement:
    """As tenure.domain.result_schema.judge, within bounds. Raises Unavailable when the machine is too busy for it."""
    asked = json.dumps([cpu_seconds, schema_json, answer]).encode()
    pipe = asyncio.subprocess.PIPE
    judging = await asyncio.create_subprocess_exec(*_COMMAND, stdin=pipe, stdout=pipe)
    try:
        async with asyncio.timeout(LONGEST_SECONDS):
            told, _ = await judging.communicate(asked)
    except TimeoutError:
        raise Unavailable("an answer could not be judged: the machine is too busy", reason="JUDGING_TIMEOUT") from None
    finally:
        if judging.returncode is None:
            judging.kill()
            await judging.wait()
    if judging.returncode in _STOPPED:
        return Judgement(violations=(_TOO_LONG,))
    if judging.returncode != 0:
        raise RuntimeError(f"judging an answer failed with {judging.returncode}")
    result_json, violations = json.loads(told)
    return Judgement(result_json, tuple(violations))


def main() -> None:
    """Reads what it may take, a schema and an answer; writes the judgement."""
    cpu_seconds, schema_json, answer = json.load(sys.stdin.buffer)
    _limit(resource.RLIMIT_CPU, cpu_seconds)
    _limit(resource.RLIMIT_CORE, 0)
    judgement = judge(schema_json, answer)
    sys.stdout.write(json.dumps([judgement.result_json, judgement.violations]))


def _limit(which: int, most: int) -> None:
    """Who started the worker may have set a lower one: that stays."""
    _, hard = resource.getrlimit(which)
    if hard == resource.RLIM_INFINITY or hard > most:
        resource.setrlimit(which, (most, most))


if __name__ == "__main__":
    main()
