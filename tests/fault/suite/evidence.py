"""All there is to know about a seed's tasks: the ledger, the tools, etcd, the outside, the model, the clients."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from tenure.audit.collect import collect_tasks
from tenure.audit.history import Effect, History, ModelCall
from tenure.domain.budget import TokenUsage
from tests.fault.suite.installation import Installation
from tests.fault.suite.traffic import Traffic

READ_SECONDS: Final = 60.0


@dataclass(slots=True)
class Marks:
    """How long the files were when a seed began: what is after them is the seed's own."""

    sizes: dict[Path, int]

    @classmethod
    def of(cls, install: Installation) -> Marks:
        files = [install.stack.layout.model_log, *install.logs.glob("*.log")]
        return cls({path: path.stat().st_size for path in files if path.exists()})

    def since(self, path: Path) -> Iterator[str]:
        """The whole lines since then."""
        if not path.exists():
            return
        with path.open("rb") as file:
            file.seek(self.sizes.get(path, 0))
            for line in file:
                yield line.decode(errors="replace")


async def collect(install: Installation, traffic: Traffic, marks: Marks, *, settled: bool) -> History:
    """What the checker wants to see."""
    task_ids = sorted({task.task_id for task in traffic.tasks if task.task_id})
    history = await collect_tasks(install.users[0], task_ids)
    await install.etcd_log.caught_up()
    return replace(
        history,
        grants=install.etcd_log.grants(set(task_ids)),
        generations=tuple(install.etcd_log.generations),
        effects=tuple(_effects(install, traffic)),
        model_calls=tuple(_model_calls(install, marks, set(task_ids))),
        operations=tuple(traffic.log.operations),
        subscriptions=traffic.log.subscriptions(),
        settled=settled,
        unix_minus_monotonic_seconds=time.time() - time.monotonic(),
    )


def _effects(install: Installation, traffic: Traffic) -> Iterator[Effect]:
    for task in traffic.tasks:
        path = install.stack.layout.records / f"{task.goal}.jsonl"
        for number, line in enumerate(path.read_text().splitlines() if path.exists() else (), start=1):
            record = json.loads(line)
            task_id, _, call_id = record["key"].rpartition("/")
            yield Effect(task_id=task_id, call_id=call_id, epoch=record["epoch"], place=f"{path.name}:{number}")


def _model_calls(install: Installation, marks: Marks, task_ids: set[str]) -> Iterator[ModelCall]:
    for line in marks.since(install.stack.layout.model_log):
        call = json.loads(line)
        task_id, step, attempt = _named(call)
        if call["endpoint"] == "messages" and task_id in task_ids:
            yield ModelCall(
                task_id=task_id,
                step=step,
                attempt_number=attempt,
                request_id=call["request_id"],
                usage=TokenUsage(
                    input_tokens=call["input_tokens"],
                    output_tokens=call["output_tokens"],
                    cache_creation_input_tokens=call["cache_creation_input_tokens"],
                    cache_read_input_tokens=call["cache_read_input_tokens"],
                ),
                answered=call["answered"],
                status=call["status"] or 0,
            )


def _named(call: dict[str, Any]) -> tuple[str, int, int]:
    """What the worker called it: task, step, attempt."""
    parts: Sequence[str] = (call["attempt"] or "").split("/")
    return (parts[0], int(parts[1]), int(parts[2])) if len(parts) == 3 else ("", 0, 0)
