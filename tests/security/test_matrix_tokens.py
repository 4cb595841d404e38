"""Fencing tokens: every method that needs one, with a token that is forged, withdrawn, replayed or of another."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import grpc
import psycopg
import pytest
from google.protobuf.message import Message

from tenure.domain.access import DEFAULT_INSTALLATION, Permission, Role
from tenure.domain.errors import PermissionDenied
from tenure.domain.fencing import Audience, Claims
from tenure.domain.texts import kept_as
from tenure.runtime.security.signing import LOOK_SECONDS, Signer, withdraw_key, write_key_pair
from tenure.v1 import checkpoint_service_pb2 as ledger
from tenure.v1 import coordinator_service_pb2 as coordinator_pb
from tenure.v1 import model_service_pb2 as models
from tenure.v1 import task_pb2, token_pb2
from tenure.v1 import task_service_pb2 as api
from tenure.v1 import tool_service_pb2 as tools
from tenure.v1.coordinator_service_pb2_grpc import CoordinatorServiceStub
from tenure.wire.token import sign_claims, sign_task_claims
from tests.security.access_table import (
    answered,
    authority_of,
    begin_call,
    channel_to,
    issued,
    matrix,
    methods_of,
    tenure_channel,
)
from tests.security.guarded import Guarded
from tests.support.patience import CALL_SECONDS, PATIENCE_SECONDS

DOORS: Final = (Audience.CHECKPOINT, Audience.TOOLS, Audience.MODELS)
INVALID: Final = "UNAUTHENTICATED/INVALID_TOKEN"
WRONG_AUDIENCE: Final = "PERMISSION_DENIED/WRONG_AUDIENCE"
OTHER_HOLDER: Final = "PERMISSION_DENIED/OTHER_HOLDER"
STALE: Final = "ABORTED/STALE_EPOCH"
LEAVE: Final = ledger.Transition(to_state=task_pb2.TASK_STATE_QUEUED, reason="WORKER_DRAINED")
Token = token_pb2.FencingToken
KEPT: Final = kept_as(b"kept")


def commit(token: Token | None) -> ledger.CommitRequest:
    return ledger.CommitRequest(token=token, commit_id=str(uuid.uuid4()), commit_number=1, transition=LEAVE)


def execute(token: Token | None) -> tools.ExecuteRequest:
    return tools.ExecuteRequest(token=token, call_id="7.0", tool="list_files", arguments_json="{}")


PROMPT: Final = models.Prompt(model="sim-hello", messages_json=['{"role":"user","content":"hello"}'])
PROCESSES: Final = {"CheckpointService": "checkpoint", "ToolService": "tools", "ModelService": "models"}
REQUESTS: Final[Mapping[str, Callable[[Token | None], Message]]] = {
    "CheckpointService/Commit": commit,
    "CheckpointService/CommitStream": lambda token: ledger.CommitStreamRequest(
        commits=[ledger.TaggedCommit(tag=1, commit=commit(token))]
    ),
    "CheckpointService/Open": lambda token: ledger.OpenRequest(token=token),
    "CheckpointService/ReportUsage": lambda token: ledger.ReportUsageRequest(
        token=token, step=1, attempt_number=1, usage=task_pb2.TokenUsage(output_tokens=1)
    ),
    "ModelService/CancelGeneration": lambda token: models.CancelGenerationRequest(
        token=token, step=1, attempt_number=1
    ),
    "ModelService/CountInputTokens": lambda token: models.CountInputTokensRequest(token=token, prompt=PROMPT),
    "ModelService/Generate": lambda token: models.GenerateRequest(
        token=token, step=1, attempt_number=1, prompt=PROMPT, max_output_tokens=1
    ),
    "ToolService/DigestFiles": lambda token: tools.DigestFilesRequest(token=token, paths=["a"]),
    "ToolService/Execute": execute,
    "ToolService/ExecuteStream": lambda token: tools.ExecuteStreamRequest(
        calls=[tools.TaggedExecute(tag=1, call=execute(token))]
    ),
    "ToolService/Fence": lambda token: tools.FenceRequest(token=token, close=True),
    "ToolService/Forget": lambda token: tools.ForgetRequest(token=token),
    "ToolService/KeepContent": lambda token: tools.KeepContentRequest(
        token=token, digest=KEPT.digest, size_bytes=KEPT.size_bytes, part=b"kept"
    ),
    "ToolService/ListTools": lambda token: tools.ListToolsRequest(token=token),
    "ToolService/ReadContent": lambda token: tools.ReadContentRequest(token=token, path=KEPT.path),
}
FRAMES: Final[Mapping[str, Any]] = {
    "CheckpointService/CommitStream": ledger.CommitStreamResponse,
    "ToolService/ExecuteStream": tools.ExecuteStreamResponse,
}
"""Methods that answer a refused request in a frame."""
CODES: Final = {code.value[0]: code.name for code in grpc.StatusCode}


@dataclass(frozen=True)
class FencedEndpoint:
    """A process with a certificate. `channels`: by the name of the service."""

    channels: Mapping[str, Any]

    async def answer(self, method: str, token: Token | None) -> str:
        """How the service answers when the process presents the token."""
        process = PROCESSES[method.partition("/")[0]]
        channel, descriptor = self.channels[process], dict(methods_of(process))[method]
        request = REQUESTS[method](token).SerializeToString()
        if not descriptor.server_streaming:
            return await answered(lambda: begin_call(channel, descriptor, request, ()))
        call = begin_call(channel, descriptor, request, ())
        with suppress(grpc.aio.AioRpcError):  # the status of the call has the refusal
            answer = await call.read()
            if answer is not grpc.aio.EOF:
                call.cancel()
                return _in_frame(method, answer)
        return await answered(lambda: call)


def _in_frame(method: str, answer: bytes) -> str:
    """The first result of a frame; OK for a stream without frames."""
    if method not in FRAMES:
        return "OK"
    frame = FRAMES[method].FromString(answer)
    result = next(iter(frame.results if method.startswith("Checkpoint") else frame.events))
    return f"{CODES[result.refusal.code]}/{result.refusal.reason}" if result.HasField("refusal") else "OK"


async def opened(stack: AsyncExitStack, guarded: Guarded, folder: Path, role: Role, name: str) -> FencedEndpoint:
    """A process with a certificate of this role and name, at the services that take tokens."""
    tls = issued(folder, authority_of(guarded.stack), role, guarded.ca_file, name=name)
    processes = tuple(PROCESSES.values())
    channels = [await stack.enter_async_context(channel_to(guarded.stack.services[one], tls)) for one in processes]
    return FencedEndpoint(dict(zip(processes, channels, strict=True)))


def claims_of(holder: str) -> Claims:
    """The claim of a task that does not exist."""
    return Claims(
        f"tasks/{uuid.uuid4()}",
        "acme",
        1 << 41,
        str(uuid.uuid4()),
        holder,
        audiences=DOORS,
        installation=DEFAULT_INSTALLATION,
    )


HOLDERS: Final = {Role.WORKER: "stranger", Role.COORDINATOR: "coordinator/stranger"}
ADMITTED: Final = {
    "CheckpointService/Commit": "NOT_FOUND/NOT_FOUND",
    "CheckpointService/CommitStream": "NOT_FOUND/NOT_FOUND",
    "CheckpointService/Open": "NOT_FOUND/NOT_FOUND",
    "CheckpointService/ReportUsage": "NOT_FOUND/NOT_FOUND",
    "ToolService/ReadContent": "NOT_FOUND/FILE_NOT_FOUND",
}
"""The answers for a valid token of a task that does not exist. The tool service knows tasks by their tokens: OK."""


@dataclass(frozen=True)
class Forger:
    """Makes tokens. `signer`: the installation's own. `stranger`: of a key that no service knows."""

    signer: Signer
    stranger: Signer

    def own(self, claims: Claims) -> Token:
        return sign_claims(self.signer, claims, datetime.now(UTC))

    def tokens(self, role: Role, method: str) -> dict[str, tuple[Token | None, str]]:
        """Tokens that a process of the role presents, and the answers. Each token is of a claim of its own."""
        holder, others = HOLDERS[role], {"worker-1", *HOLDERS.values()} - {HOLDERS[role]}
        if role is Role.WORKER:
            others |= {"strangers", "strange", "coordinator/stranger"}

        def own(**changes: Any) -> Token:
            return self.own(replace(claims_of(holder), **changes))

        good = own()
        other_door = Audience.TOOLS if method.startswith("Checkpoint") else Audience.CHECKPOINT
        admitted = ADMITTED.get(method, "OK")
        return {
            "absent": (None, "INVALID_ARGUMENT/INVALID_REQUEST"),
            "empty": (Token(), "INVALID_ARGUMENT/INVALID_REQUEST"),
            "valid": (own(), admitted),
            "of the pool": (own(holder=f"{holder}-2"), admitted),
            "with a changed signature": (
                Token(claims=good.claims, key_id=good.key_id, signature=bytes(one ^ 1 for one in good.signature)),
                INVALID,
            ),
            "with the signature of another": (
                Token(claims=own().claims, key_id=good.key_id, signature=good.signature),
                INVALID,
            ),
            "by an unknown key": (sign_claims(self.stranger, claims_of(holder), datetime.now(UTC)), INVALID),
            "by an unknown key with a known id": (
                sign_claims(replace(self.stranger, key_id=self.signer.key_id), claims_of(holder), datetime.now(UTC)),
                INVALID,
            ),
            "for the other door": (own(audiences=(other_door,)), WRONG_AUDIENCE),
            "for a provider": (own(audiences=(Audience.PROVIDER,)), WRONG_AUDIENCE),
            "for a lease": (own(audiences=(Audience.LEASE,)), WRONG_AUDIENCE),
            "for no service": (own(audiences=()), WRONG_AUDIENCE),
            "for no service of no installation": (own(audiences=(), installation=""), WRONG_AUDIENCE),
            "of another installation": (own(installation="other"), WRONG_AUDIENCE),
            "of a lease": (own(resource="leases/crane"), "PERMISSION_DENIED/WRONG_RESOURCE"),
            **{f"of {other}": (own(holder=other), OTHER_HOLDER) for other in sorted(others)},
        }


@pytest.fixture
def forger(guarded: Guarded, tmp_path: Path) -> Forger:
    write_key_pair(tmp_path / "stranger.json", tmp_path / "public.json", "stranger")
    return Forger(Signer.load(guarded.stack.layout.signing_key), Signer.load(tmp_path / "stranger.json"))


@pytest.mark.parametrize("role", HOLDERS)
async def test_each_method_accepts_only_tokens_of_its_caller(
    guarded: Guarded, tmp_path: Path, forger: Forger, role: Role
) -> None:
    needing = {name: row for name, row in matrix().items() if row.needs_token}
    assert set(REQUESTS) == set(needing), "each method that needs a token needs a request"
    async with AsyncExitStack() as stack:
        door = await opened(stack, guarded, tmp_path, role, "stranger")
        wrong = {}
        for method in (name for name, row in needing.items() if role.lower() in row.callers):
            for name, (token, expected) in forger.tokens(role, method).items():
                if (answer := await door.answer(method, token)) != expected:
                    wrong[method, name] = (answer, expected)
    assert wrong == {}


async def test_tokens_of_a_withdrawn_key_open_nothing(guarded: Guarded, tmp_path: Path) -> None:
    """Also those that were verified before: their verification is cached."""
    keys, private = guarded.stack.layout.verifying_keys, tmp_path / "former.json"
    key_id = uuid.uuid4().hex[:8]
    write_key_pair(private, keys, key_id)
    former = Signer.load(private)
    private.unlink()
    async with AsyncExitStack() as stack:
        door = await opened(stack, guarded, tmp_path, Role.WORKER, "stranger")
        methods = [name for name in REQUESTS if "worker" in matrix()[name].callers]
        tokens = {name: sign_claims(former, claims_of("stranger"), datetime.now(UTC)) for name in methods}
        before = {name: await door.answer(name, token) for name, token in tokens.items()}
        assert before == {name: ADMITTED.get(name, "OK") for name in methods}
        withdraw_key(guarded.stack.layout.signing_key, keys, key_id)
        await asyncio.sleep(LOOK_SECONDS)
        after = {name: await door.answer(name, token) for name, token in tokens.items()}
    assert after == dict.fromkeys(methods, INVALID)


FIRST: Final = {
    "CheckpointService/Commit": STALE,
    "CheckpointService/CommitStream": STALE,
    "CheckpointService/Open": STALE,
    "CheckpointService/ReportUsage": "FAILED_PRECONDITION/ATTEMPT_SETTLED",
    "ModelService/CancelGeneration": STALE,
    "ModelService/CountInputTokens": "OK",  # it has no fence, and bills nothing
    "ModelService/Generate": STALE,
    "ToolService/DigestFiles": STALE,
    "ToolService/Execute": STALE,
    "ToolService/ExecuteStream": STALE,
    "ToolService/Fence": STALE,
    "ToolService/KeepContent": STALE,
    "ToolService/ListTools": STALE,
    "ToolService/ReadContent": STALE,
}
"""The answers for a token whose claim has a successor."""
LAST: Final = {
    **FIRST,
    "CheckpointService/Open": "FAILED_PRECONDITION/WRONG_STATE",
    "ModelService/CancelGeneration": "FAILED_PRECONDITION/ATTEMPT_SUPERSEDED",
    "ModelService/Generate": "FAILED_PRECONDITION/ATTEMPT_SUPERSEDED",  # a later step has begun
    "ToolService/Fence": "OK",  # it closes again what it has closed
}
"""The answers for the last claim of a task that has ended."""


async def claim_of(guarded: Guarded, task_id: str) -> tuple[int, str]:
    """The epoch and the claim id of the newest grant."""
    async with await psycopg.AsyncConnection.connect(guarded.stack.postgres_dsn) as pool_connection:
        rows = await pool_connection.execute(
            "select granted, granted_claim::text from ledger.tasks where task_id = %s", (task_id,)
        )
        return (await rows.fetchall())[0]


@pytest.mark.parametrize("which", ["first", "last"])
async def test_a_token_of_an_ended_claim_changes_nothing(
    guarded: Guarded, tmp_path: Path, forger: Forger, which: str
) -> None:
    """The worker that held the claims presents their tokens again."""
    key = (await guarded.key(Permission.APPROVE, Permission.WRITE)).secret
    async with guarded.client(key) as client, AsyncExitStack() as stack:
        request = api.SubmitTaskRequest(spec=task_pb2.TaskSpec(agent=task_pb2.AgentSpec(model="sim-question")))
        task = await client.submit("ask", request=request)
        async with asyncio.timeout(PATIENCE_SECONDS):
            while (task := await client.get(task.task_id)).state != task_pb2.TASK_STATE_WAITING_USER:
                await asyncio.sleep(0.05)
        first = await claim_of(guarded, task.task_id)
        await client.resume(task.task_id, task.wait.wait_id, reply="blue")
        await client.wait(task.task_id, PATIENCE_SECONDS)
        last = await claim_of(guarded, task.task_id)
        assert last > first
        epoch, claim_id = first if which == "first" else last
        before = [entry async for entry in client.entries(task.task_id)]
        door = await opened(stack, guarded, tmp_path, Role.WORKER, "worker-1")
        claims = replace(claims_of("worker-1"), resource=f"tasks/{task.task_id}", epoch=epoch, claim_id=claim_id)
        newest = replace(claims, epoch=last[0], claim_id=last[1])
        fence = tools.FenceRequest(token=forger.own(newest), close=True)  # as at the end of a task without an owner
        await door.channels["tools"].unary_unary("/tenure.v1.ToolService/Fence")(fence.SerializeToString())
        answers = {method: await door.answer(method, forger.own(claims)) for method in FIRST}
        assert answers == (FIRST if which == "first" else LAST)
        assert [entry async for entry in client.entries(task.task_id)] == before


async def test_a_worker_opens_no_session_of_another(guarded: Guarded, tmp_path: Path) -> None:
    tls = issued(tmp_path, authority_of(guarded.stack), Role.WORKER, guarded.ca_file)
    async with tenure_channel(guarded.stack.services["coordinator"], tls) as coordinator:
        hello = coordinator_pb.Hello(worker_id="worker-1", free_slots=1, session_secret=bytes(32))
        call: Any = CoordinatorServiceStub(coordinator).Session(
            iter([coordinator_pb.SessionRequest(hello=hello)]), timeout=CALL_SECONDS
        )
        with pytest.raises(PermissionDenied) as refused:
            await call.read()
        assert refused.value.reason == "OTHER_HOLDER"


async def test_a_token_of_a_provider_stays_with_its_claim(guarded: Guarded, tmp_path: Path, forger: Forger) -> None:
    """A worker's own token carries the one for providers: a token for our services is refused in its place."""
    async with AsyncExitStack() as stack:
        door = await opened(stack, guarded, tmp_path, Role.WORKER, "stranger")
        claims = claims_of("stranger")
        mixed = sign_task_claims(forger.signer, claims, datetime.now(UTC))
        mixed.provider_token.CopyFrom(forger.own(claims))
        other = sign_task_claims(forger.signer, claims, datetime.now(UTC))
        other.provider_token.CopyFrom(
            sign_task_claims(forger.signer, claims_of("stranger"), datetime.now(UTC)).provider_token
        )
        for token in (mixed, other):
            assert await door.answer("ToolService/Execute", token) == WRONG_AUDIENCE
