"""A row that the database refuses harms no neighbour: for every statement that a batch of commits or opens writes.

The statements are read from the code. One that has neither a case nor a reason why no batch runs it fails the test.
"""

from __future__ import annotations

import ast
import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import services.checkpoint
from services.checkpoint import queries
from tenure.domain.sub_agents import SPAWN_SUB_AGENTS
from tenure.v1 import checkpoint_service_pb2 as pb
from tenure.v1 import ledger_pb2, task_pb2
from tests.conformance.test_ledger_outputs import intent, outcome, output
from tests.support.fix_checkpoint import Checkpoint, MakeCheckpoint, Owner, answer, entry, reserve, words
from tests.support.patience import PATIENCE_SECONDS
from tests.support.refused_rows import Refusal, refuse_rows

pytestmark = pytest.mark.server
NEIGHBOURS = 7
LINE = "the line of the refused row"
EXPECTED = {
    Refusal.TOO_LONG: "UNWRITABLE",
    Refusal.GUARD: "UNWRITABLE",
    Refusal.CANCELLED: "STATEMENT_TIMEOUT",
    Refusal.CONNECTION_LOST: "POSTGRES_UNAVAILABLE",
}
Prepare = Callable[[Checkpoint], Awaitable[tuple[Owner, pb.CommitRequest]]]


async def _owner(replica: Checkpoint, **spec: Any) -> Owner:
    return await replica.claim((await replica.create(**spec)).task_id)


async def a_step(replica: Checkpoint) -> tuple[Owner, pb.CommitRequest]:
    owner = await _owner(replica)
    return owner, owner.request(words())


async def an_answer(replica: Checkpoint) -> tuple[Owner, pb.CommitRequest]:
    owner = await _owner(replica)
    await owner.commit(reserve=reserve())
    return owner, owner.request(answer())


async def a_warning(replica: Checkpoint) -> tuple[Owner, pb.CommitRequest]:
    owner = await _owner(replica, limits=task_pb2.Limits(max_tokens=210))
    await owner.commit(reserve=reserve())
    return owner, owner.request(answer(tokens=190))


def _ended(owner: Owner) -> tuple[Owner, pb.CommitRequest]:
    end = pb.Transition(to_state=task_pb2.TASK_STATE_SUCCEEDED, reason="FINAL_ANSWER", result="done")
    return owner, owner.request(transition=end)


async def an_end(replica: Checkpoint) -> tuple[Owner, pb.CommitRequest]:
    return _ended(await _owner(replica))


async def an_end_that_a_line_waits_for(replica: Checkpoint) -> tuple[Owner, pb.CommitRequest]:
    source = task_pb2.Source(kind=task_pb2.SOURCE_KIND_CONTROL, source_id=LINE, at_most=1)
    task_id = (await replica.create(source=source)).task_id
    async with asyncio.timeout(PATIENCE_SECONDS):
        while (await replica.get(task_id)).in_line:
            await asyncio.sleep(0.02)
    return _ended(await replica.claim(task_id))


async def a_call_of_an_output(replica: Checkpoint) -> tuple[Owner, pb.CommitRequest]:
    owner, request = await an_answer(replica)
    request.entries.append(intent("1.0"))
    return owner, request


async def an_output(replica: Checkpoint) -> tuple[Owner, pb.CommitRequest]:
    owner, request = await a_call_of_an_output(replica)
    await owner.send(request)
    return owner, owner.request(outcome("1.0", output()))


async def a_spawn(replica: Checkpoint) -> tuple[Owner, pb.CommitRequest]:
    owner, request = await an_answer(replica)
    arguments = json.dumps({"goals": ["part of it"], "max_tokens": 1000})
    call = ledger_pb2.ToolIntent(call_id="1.0", tool_use_id="a", tool=SPAWN_SUB_AGENTS, arguments_json=arguments)
    request.entries.append(entry(1, tool_intent=call))
    return owner, request


async def a_failure_to_undo(replica: Checkpoint) -> tuple[Owner, pb.CommitRequest]:
    policy = task_pb2.TaskPolicy(on_failure=task_pb2.FAILURE_POLICY_UNDO)
    owner = await replica.claim((await replica.create(policy=policy)).task_id)
    end = pb.Transition(to_state=task_pb2.TASK_STATE_FAILED, reason="MODEL_UNAVAILABLE", message="gone")
    return owner, owner.request(transition=end)


class Case(NamedTuple):
    """A statement, the table in which the database refuses its row, and the commit that writes the row."""

    statement: str
    table: str
    prepare: Prepare


CASES = [
    Case("QUERIES.advance", "entries", a_step),
    Case("QUERIES.advance", "tasks", a_step),
    Case("QUERIES.write", "entries", an_answer),
    Case("QUERIES.write", "tasks", an_answer),
    Case("QUERIES.write", "token_usage", an_answer),
    Case("QUERIES.write", "budgets", an_answer),
    Case("QUERIES.warn", "changes", a_warning),
    Case("QUERIES.move", "changes", an_end),
    Case("QUERIES.add_words", "task_texts", an_end),
    Case("OUTPUTS.open_output", "task_outputs", a_call_of_an_output),
    Case("OUTPUTS.write_outputs", "task_outputs", an_output),
    Case("UNDOS.note_due", "due_undos", a_failure_to_undo),
    Case("SOURCE_LINES.note", "due_source_lines", an_end_that_a_line_waits_for),
    Case("QUERIES.create_tasks", "tasks", a_spawn),
    Case("QUERIES.create_ledgers", "entries", a_spawn),
    Case("SUB_AGENTS.note_spawned", "tasks", a_spawn),
]
IN_NO_BATCH = {
    "QUERIES.remember_foreign": "AppendForeign has a transaction of its own",
    "QUERIES.plan_operator_wait": "an operator's request has a transaction of its own",
    "QUERIES.escalate": "only the sweep of escalations",
    "QUERIES.keep_start": "only the sweeps and operators",
    "QUERIES.keep_signal": "SendSignal has a transaction of its own",
    "QUERIES.forget_signals": "a sweep",
    "QUERIES.take_signal": "its row is of the wait, and written by QUERIES.move too",
    "FORKS.prepare_fork": "the gateway prepares an id in a transaction of its own",
    "FORKS.take_prepared": "only of a submit with files and of a fork",
    "FORKS.give_up_prepared": "a sweep",
    "QUEUE.take": "an offer has a transaction of its own",
    "SUB_AGENTS.pass_on": "AppendForeign, and the duty of sub-agent events, have transactions of their own",
    "SUB_AGENTS.take_raised": "a sweep",
}
_STATEMENT = re.compile(r"\b([A-Z_]+)\.([a-z_]+)\b")
_WRITES = re.compile(r"\b(?:insert into|update|delete from)\s+(?!skip\b)\w+")


def _modules_of_batches() -> Iterator[str]:
    """Yields the sources of all modules of the service that the batches import."""
    root = Path(services.checkpoint.__file__).parents[2]
    seen: set[str] = set()
    waiting = [
        "services.checkpoint.commit.committer",
        "services.checkpoint.commit.opener",
        "services.checkpoint.submit.creator",
    ]
    while waiting:
        name = waiting.pop()
        path = root / f"{name.replace('.', '/')}.py"
        if name in seen or not path.exists():
            continue
        seen.add(name)
        source = path.read_text()
        yield source
        imports = (str(node.module) for node in ast.parse(source).body if isinstance(node, ast.ImportFrom))
        waiting += [module for module in imports if module.startswith("services.checkpoint")]


def _written() -> set[str]:
    """Returns the statements that these modules use and that write."""
    found = set()
    for source in _modules_of_batches():
        for group, name in _STATEMENT.findall(source):
            statement = getattr(getattr(queries, group, None), name, b"")
            text = re.sub(r"--.*", "", statement.decode() if isinstance(statement, bytes) else "")
            if _WRITES.search(text.replace("for no key update", "").replace("do update", "")):
                found.add(f"{group}.{name}")
    return found


def test_every_written_statement_has_a_case() -> None:
    assert _written() - set(IN_NO_BATCH) == {case.statement for case in CASES}


def _kind_for(position: int) -> Refusal:
    return list(Refusal)[position % len(Refusal)]


EVERY = [(case, refusal) for case in CASES for refusal in Refusal]
FEW = {(case, _kind_for(position)) for position, case in enumerate(CASES) if position < len(Refusal)}


@pytest.mark.parametrize(
    ("case", "refusal"),
    [
        pytest.param(
            *one, id=f"{one[0].statement} {one[0].table} {one[1].name}", marks=[] if one in FEW else pytest.mark.faults
        )
        for one in EVERY
    ],
)
async def test_a_refused_row_harms_no_neighbour(checkpoint: MakeCheckpoint, case: Case, refusal: Refusal) -> None:
    replica = await checkpoint()
    refused, request = await case.prepare(replica)
    others = [await _owner(replica) for _ in range(NEIGHBOURS)]
    await refuse_rows(replica.dsn, case.table, f"to_jsonb(new)::text ~ '{refused.task.task_id}|{LINE}'", refusal)

    requests = [other.request(words()) for other in others]
    requests.insert(NEIGHBOURS // 2, request)
    frame = [pb.TaggedCommit(tag=tag, commit=one) for tag, one in enumerate(requests)]
    call = replica.stub.CommitStream(timeout=PATIENCE_SECONDS)
    await call.write(pb.CommitStreamRequest(commits=frame))
    await call.done_writing()
    answered = [result async for answers in call for result in answers.results]

    ends = {result.tag: result.refusal for result in answered}
    assert {tag: end.reason for tag, end in ends.items()} == {
        tag: EXPECTED[refusal] if tag == NEIGHBOURS // 2 else "" for tag in range(NEIGHBOURS + 1)
    }
    if EXPECTED[refusal] != "UNWRITABLE":  # it is tried again, and its neighbours do not wait for that
        assert answered[-1].tag == NEIGHBOURS // 2
