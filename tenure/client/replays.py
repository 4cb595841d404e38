"""What a replay needs from a recorded run: its ledger, also from a file, the submit of the new task, and its worker."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from google.protobuf.json_format import Parse, ParseError

from tenure.client.files import download_file, read_file
from tenure.domain.errors import NotFound, WrongState
from tenure.domain.replay import Divergence, divergences
from tenure.domain.task import REPLAY_LOOP
from tenure.domain.texts import digest_of_path, kept_as
from tenure.v1 import ledger_pb2, task_pb2, workspace_pb2
from tenure.v1 import task_service_pb2 as api
from tenure.wire.ledger import entries_to_domain

if TYPE_CHECKING:
    from tenure.v1.task_service_pb2_grpc import TaskServiceAsyncStub

REPLAY_LABEL: Final = "replay_of"
_MAX_LABEL_CHARACTERS: Final = 200
_HOW: Final = "write it with: tenure tasks entries TASK --json -v > FILE"


class UnreadableLedger(ValueError):  # noqa: N818  the name says what happened
    """The entries are not those of one run that this version can replay. The message says why, and what to do."""


def read_ledger(path: Path) -> list[ledger_pb2.Entry]:
    """Reads a file of `tenure tasks entries TASK --json -v`: an entry a line. Raises UnreadableLedger."""
    try:
        lines = path.read_text(encoding="utf-8").split("\n")  # not splitlines: a text in an entry may have U+2028
    except (OSError, UnicodeDecodeError) as error:
        raise UnreadableLedger(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from error
    entries: list[ledger_pb2.Entry] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            entry = Parse(line, ledger_pb2.Entry(), ignore_unknown_fields=True)
        except ParseError as error:
            raise UnreadableLedger(f"{path}, line {number} is not a ledger entry: {error}. Please {_HOW}") from error
        if entry.sequence != len(entries) + 1:
            raise UnreadableLedger(
                f"{path}, line {number} has entry {entry.sequence}, but {len(entries) + 1} comes next: the file must "
                f"have the whole ledger of one task. Please {_HOW}"
            )
        entries.append(entry)
    spec_of(entries, str(path))
    return entries


def spec_of(entries: Sequence[ledger_pb2.Entry], name: str) -> task_pb2.TaskSpec:
    """Returns the spec that the run was submitted with. Raises UnreadableLedger for a run that cannot be replayed."""
    if not entries or not entries[0].body.HasField("submitted"):
        raise UnreadableLedger(f"{name} has no ledger: its first entry must be `submitted`. Please {_HOW}")
    spec = entries[0].body.submitted.spec
    try:
        entries_to_domain(entries)
    except ValueError as error:
        raise UnreadableLedger(f"{name}: {error}. Replay it with the version that wrote it, or a later one") from error
    return spec


class ReplayError(ValueError):
    """The run cannot be replayed in the way that was asked for. The message says why, and what to do."""


def check_replay(
    spec: task_pb2.TaskSpec, name: str, code: str, *, has_code: bool, has_model: bool, system: bool
) -> None:
    """Raises ReplayError. `code`: how the caller names the code of a function, or of an agent in Python."""
    function = spec.control.function
    if not function and has_code:
        raise ReplayError(f"{name} is the run of an agent without code: replay it without {code}")
    if not function and not has_model:
        raise ReplayError(f"{name} is the run of an agent without code: name the model of the replay")
    if function and not has_code:
        raise ReplayError(
            f"{name} is the run of {function}, a function or an agent in Python. Its code runs again in a replay: name "
            f"the code by {code}"
        )
    if function and system:
        raise ReplayError(f"{name} is the run of {function}, whose code has the system prompt: change it there")


def replay_request(
    spec: task_pb2.TaskSpec, name: str, model: str, *, system: str | None = None
) -> api.SubmitTaskRequest:
    """Returns the submit of a replay: the spec of the run with the other model, in a queue of its own.

    `name`: the id of the recorded task, or its file; it becomes the label `replay_of`. `model` "": of a run of code,
    whose model calls are answered from the record. `system`: another system prompt.
    """
    replayed = task_pb2.TaskSpec(
        goal=spec.goal,
        agent=spec.agent,
        limits=spec.limits,
        policy=spec.policy,
        labels={**spec.labels, REPLAY_LABEL: name[-_MAX_LABEL_CHARACTERS:]},
        queue=f"replay-{uuid.uuid4().hex[:16]}",
        result_schema_json=spec.result_schema_json,
    )
    replayed.agent.model, replayed.agent.loop = model or spec.agent.model, REPLAY_LOOP
    is_code = spec.HasField("control")
    if is_code:
        replayed.control.CopyFrom(spec.control)
    if system is not None:
        replayed.agent.system = system
    if spec.limits.money_cap == task_pb2.MONEY_CAP_DEFAULT:  # the other model has its own default, or no price
        replayed.limits.max_nano_usd = 0
    # A replay never waits, and has no effects. Approvers and webhooks of the recorded run need not exist where it is
    # replayed.
    replayed.policy.ClearField("escalations")
    replayed.policy.ClearField("on_failure")
    del replayed.policy.approvers[:]
    if not is_code:  # the code makes recorded calls for the permissions of its inline tools
        del replayed.agent.approve_tools[:]
    return api.SubmitTaskRequest(spec=replayed)


def record_for_worker(entries: Sequence[ledger_pb2.Entry]) -> bytes:
    """Returns the content of the file that TENURE_WORKER_RECORDED_CALLS_FILE names."""
    return api.ListTaskEntriesResponse(entries=entries).SerializeToString()


def worker_settings(record: Path, spec: task_pb2.TaskSpec, model: str, functions: Iterable[str] = ()) -> dict[str, str]:
    """Returns the settings of the worker that runs a replay.

    `record`: the file of `record_for_worker`. `spec`: the replay's. `model` "": model calls of code are answered from
    the record. `functions`: the modules with the code, unless a program has it.
    """
    settings = {
        "TENURE_WORKER_LOOPS": REPLAY_LOOP,
        "TENURE_WORKER_QUEUES": spec.queue,
        "TENURE_WORKER_RECORDED_CALLS_FILE": str(record),
        "TENURE_WORKER_CONTROL_MODULES": ",".join(functions),
    }
    return {**settings, "TENURE_WORKER_REPLAY_MODEL": model} if spec.HasField("control") else settings


async def copied_files(
    tasks: TaskServiceAsyncStub, task_id: str, entries: Sequence[ledger_pb2.Entry], folder: Path
) -> list[workspace_pb2.InputFile]:
    """Returns the files of the run's submit. Saves the images of its tools and messages, and large results of code, in
    `folder`, for the replay's worker.

    Leaves out files that are gone by now: the model of the replay reads that they do not exist.
    """
    for entry in entries:
        of_message = (file.image for file in entry.body.user_message.files if file.HasField("image"))
        images = (*entry.body.tool_outcome.outcome.images, *of_message)
        results = (entry.body.control_step.kept.path, entry.body.tool_outcome.outcome.output_path)
        for path in (*(image.kept.path for image in images), *filter(digest_of_path, results)):
            with suppress(NotFound, WrongState):
                await download_file(tasks, task_id, path, folder / Path(path).name)
    files = []
    for file in entries[0].body.submitted.files:
        with suppress(NotFound, WrongState):
            parts = read_file(tasks, task_id, file.image.kept.path or file.path)
            content = b"".join([part async for part in parts])
            if kept_as(content).digest == file.digest:
                files.append(workspace_pb2.InputFile(path=file.path, content=content))
    return files


def compare_runs(recorded: Sequence[ledger_pb2.Entry], replayed: Sequence[ledger_pb2.Entry]) -> list[Divergence]:
    """Returns where a replay differs from the recorded run. Raises ValueError for entries of a newer version."""
    return divergences(entries_to_domain(recorded), entries_to_domain(replayed))
