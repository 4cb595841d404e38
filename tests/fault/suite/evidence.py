"""All there is to know about a seed's tasks: the ledger, the tools, etcd, the outside, the model, the clients."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from checker.collect import COLLECTED, collect_tasks, read_effects
from checker.history import History
from tests.fault.suite.installation import Installation
from tests.fault.suite.traffic import Traffic
from tests.support.model_log import model_calls


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
    of_users, of_guests = (sorted(traffic.task_ids(guests=guests)) for guests in (False, True))
    history = await collect_tasks(install.users[0], of_users)
    strangers = await collect_tasks(install.guests[0], of_guests)
    history = replace(history, **{name: getattr(history, name) + getattr(strangers, name) for name in COLLECTED})
    await install.etcd_log.caught_up()
    known, model_log = {*of_users, *of_guests}, install.stack.layout.model_log
    return replace(
        history,
        grants=install.etcd_log.grants(known),
        generations=tuple(install.etcd_log.generations),
        effects=tuple(one for one in read_effects(install.stack.layout.records) if one.task_id in known),
        model_calls=tuple(one for one in model_calls(marks.since(model_log)) if one.task_id in known),
        operations=tuple(traffic.log.operations),
        subscriptions=traffic.log.subscriptions(),
        stops=tuple(traffic.log.stops),
        bounds=tuple(traffic.log.bounds),
        settled=settled,
        unix_minus_monotonic_seconds=time.time() - time.monotonic(),
    )
