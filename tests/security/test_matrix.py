"""Who may call what: every method of every server, called with the certificate of every role."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import grpc
import pytest
import pytest_asyncio
from google.protobuf import descriptor_pool

from devstack import ServiceProcess, Stack, StackOptions
from tenure.client import Client
from tenure.domain.access import DEFAULT_INSTALLATION, Role, server_name
from tenure.domain.errors import TenureError
from tenure.domain.fencing import Audience, Claims
from tenure.runtime.certificates import Authority, write_certificate
from tenure.runtime.rpc_client import TenureChannel, open_channel
from tenure.runtime.signing import Signer
from tenure.runtime.tls import ClientTls
from tenure.v1 import checkpoint_service_pb2 as checkpoint_pb
from tenure.v1 import coordinator_service_pb2 as coordinator_pb
from tenure.v1 import task_pb2, token_pb2
from tenure.v1 import task_service_pb2 as api
from tenure.v1 import tool_service_pb2 as tools_pb
from tenure.v1.checkpoint_service_pb2_grpc import CheckpointServiceStub
from tenure.v1.coordinator_service_pb2_grpc import CoordinatorServiceStub
from tenure.v1.tool_service_pb2_grpc import ToolServiceStub
from tenure.wire.access import access_rules
from tenure.wire.token import sign_claims, sign_task_claims
from tests.support.grpc_limits import STREAM_ENDED_DURING_WRITE
from tests.support.patience import CALL_SECONDS, PATIENCE_SECONDS

SERVICES: Final = {
    "gateway": (
        "TaskService",
        "AdminService",
        "LeaseService",
        "ScheduleService",
        "TenantService",
        "WebhookService",
        "ApiKeyService",
        "AuditService",
    ),
    "coordinator": ("CoordinatorService", "LeaseService"),
    "checkpoint": (
        "CheckpointService",
        "ScheduleService",
        "TenantService",
        "WebhookService",
        "ApiKeyService",
        "AuditService",
    ),
    "tools": ("ToolService",),
    "worker-1": ("WorkerService",),
}
NOT_SERVED_BY_US: Final = {"ToolProviderService"}
UNREADABLE: Final = b"\xff"
"""Bytes that are no message: an allowed caller gets INVALID_ARGUMENT, and the method does nothing."""


class Row(NamedTuple):
    """A method: the callers that are allowed, whether it needs a token, whether it is audited."""

    callers: frozenset[str]
    needs_token: bool
    is_audited: bool


def matrix() -> dict[str, Row]:
    lines = (Path(__file__).parent / "matrix.tsv").read_text(encoding="utf-8").splitlines()[1:]
    rows = (line.split("\t") for line in lines)
    return {
        method: Row(frozenset(callers.split()), token == "token", audit == "audited")
        for method, callers, token, audit in rows
    }


def test_each_method_has_the_access_rule_of_its_row() -> None:
    stated = {}
    for service in {name.partition("/")[0] for name in matrix()}:
        for method, rule in access_rules(f"tenure.v1.{service}").items():
            client = [f"client:{rule.permission.lower()}"] if rule.permission else []
            callers = frozenset([*(role.lower() for role in rule.roles), *client])
            stated[f"{service}/{method}"] = Row(callers, rule.needs_token, rule.is_audited)
    assert stated == matrix()


def test_each_service_of_the_contract_has_rows() -> None:
    served = {name for names in SERVICES.values() for name in names} | NOT_SERVED_BY_US
    assert {name.partition("/")[0] for name in matrix()} == served


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    """A stack whose processes know each other by their certificates."""
    async with Stack(StackOptions(data_dir=tmp_path_factory.mktemp("tls") / "data", workers=1, tls=True)) as running:
        yield running


def issued(folder: Path, authority: Authority, role: Role, ca_file: Path, *, days: float = 1) -> ClientTls:
    """A certificate of this role, of a process called stranger."""
    certificate, key = authority.issue(role, "stranger", DEFAULT_INSTALLATION, days)
    write_certificate(folder, role.lower(), certificate, key)
    return ClientTls(ca_file, folder / f"{role.lower()}.pem", folder / f"{role.lower()}.key.pem")


def authority_of(stack: Stack) -> Authority:
    certificates = stack.layout.certificates
    return Authority.load(certificates / "ca.pem", certificates / "ca.key.pem")


def process_of(stack: Stack, name: str) -> ServiceProcess:
    return (
        next(worker for worker in stack.workers if worker.name == name) if name[-1].isdigit() else stack.services[name]
    )


def channel_to(process: ServiceProcess, tls: ClientTls) -> Any:
    role = Role(process.module.rpartition(".")[2].upper())
    override = ("grpc.ssl_target_name_override", server_name(DEFAULT_INSTALLATION, role))
    options = [override, ("grpc.use_local_subchannel_pool", 1)]
    return grpc.aio.secure_channel(process.address, grpc.ssl_channel_credentials(*tls.read()), options=options)


def tenure_channel(process: ServiceProcess, tls: ClientTls) -> TenureChannel:
    role = Role(process.module.rpartition(".")[2].upper())
    named = replace(tls, server_name=server_name(DEFAULT_INSTALLATION, role))
    return open_channel(process.address, tls=named, default_timeout_seconds=CALL_SECONDS)


async def code_of(channel: Any, service: str, method: Any, metadata: tuple[tuple[str, str], ...] = ()) -> str:
    """The code that an unreadable request gets."""
    path, several = f"/tenure.v1.{service}/{method.name}", [UNREADABLE]
    options: dict[str, Any] = {"timeout": CALL_SECONDS, "metadata": metadata}
    calls: dict[tuple[bool, bool], Any] = {
        (False, False): lambda: channel.unary_unary(path)(UNREADABLE, **options),
        (False, True): lambda: channel.unary_stream(path)(UNREADABLE, **options),
        (True, False): lambda: channel.stream_unary(path)(iter(several), **options),
        (True, True): lambda: channel.stream_stream(path)(iter(several), **options),
    }
    return await code_answered(calls[method.client_streaming, method.server_streaming])


async def code_answered(begin: Callable[[], Any]) -> str:
    """The server's code, of the first call whose status grpc.aio does not lose."""
    while True:
        call = begin()
        code = await call.code()
        if await call.details() != STREAM_ENDED_DURING_WRITE:
            return str(code.name)


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("process", SERVICES)
async def test_a_role_calls_exactly_the_methods_of_its_row(stack: Stack, tmp_path: Path, process: str) -> None:
    rows, ca_file, wrong = matrix(), stack.layout.certificates / "ca.pem", []
    async with AsyncExitStack() as opened:
        for role in Role:
            tls = issued(tmp_path, authority_of(stack), role, ca_file)
            channel = await opened.enter_async_context(channel_to(process_of(stack, process), tls))
            for service in SERVICES[process]:
                for method in descriptor_pool.Default().FindServiceByName(f"tenure.v1.{service}").methods:
                    callers = rows[f"{service}/{method.name}"].callers
                    as_client = role is Role.OPERATOR and process == "gateway" and any(":" in one for one in callers)
                    expected = "INVALID_ARGUMENT" if role.lower() in callers or as_client else "PERMISSION_DENIED"
                    code = await code_of(channel, service, method)
                    if code != expected:
                        wrong.append((role, f"{service}/{method.name}", code, expected))
    assert wrong == []


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("process", SERVICES)
async def test_a_caller_without_a_valid_certificate_is_no_caller(stack: Stack, tmp_path: Path, process: str) -> None:
    ca_file, own = stack.layout.certificates / "ca.pem", authority_of(stack)
    foreign = Authority.create(DEFAULT_INSTALLATION, days=1)
    folders = [tmp_path / name for name in ("foreign", "expired")]
    for folder in folders:
        folder.mkdir()
    callers = {
        "no certificate": ClientTls(ca_file),
        "of another authority": issued(folders[0], foreign, Role.GATEWAY, ca_file),
        "expired": issued(folders[1], own, Role.GATEWAY, ca_file, days=-0.001),
    }
    method = descriptor_pool.Default().FindServiceByName(f"tenure.v1.{SERVICES[process][0]}").methods[0]
    codes = {}
    for name, tls in callers.items():
        async with channel_to(process_of(stack, process), tls) as channel:
            codes[name] = await code_of(channel, SERVICES[process][0], method)
    assert codes == dict.fromkeys(callers, "UNAVAILABLE")
    plain = grpc.aio.insecure_channel(process_of(stack, process).address)
    async with plain as channel:
        assert await code_of(channel, SERVICES[process][0], method) == "UNAVAILABLE"


@pytest.mark.asyncio(loop_scope="module")
async def test_a_process_of_another_installation_is_refused(stack: Stack, tmp_path: Path) -> None:
    certificate, key = authority_of(stack).issue(Role.GATEWAY, "stranger", "other", days=1)
    write_certificate(tmp_path, "gateway", certificate, key)
    tls = ClientTls(stack.layout.certificates / "ca.pem", tmp_path / "gateway.pem", tmp_path / "gateway.key.pem")
    async with channel_to(stack.services["checkpoint"], tls) as channel:
        method = descriptor_pool.Default().FindServiceByName("tenure.v1.CheckpointService").methods[0]
        assert await code_of(channel, "CheckpointService", method) == "UNAUTHENTICATED"


@pytest.mark.asyncio(loop_scope="module")
async def test_reflection_is_for_operators_and_health_for_all(stack: Stack, tmp_path: Path) -> None:
    for role, expected in ((Role.OPERATOR, "INVALID_ARGUMENT"), (Role.WORKER, "PERMISSION_DENIED")):
        tls = issued(tmp_path, authority_of(stack), role, stack.layout.certificates / "ca.pem")
        async with channel_to(stack.services["gateway"], tls) as channel:
            path = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"
            assert (
                await code_answered(partial(channel.stream_stream(path), [UNREADABLE], timeout=CALL_SECONDS))
                == expected
            )
            health: Any = channel.unary_unary("/grpc.health.v1.Health/Check")(b"", timeout=CALL_SECONDS)
            assert (await health.code()).name == "OK"


@pytest.mark.asyncio(loop_scope="module")
async def test_a_task_runs_through_processes_that_know_each_other(stack: Stack) -> None:
    certificates = stack.layout.certificates
    tls = ClientTls(certificates / "ca.pem", certificates / "operator.pem", certificates / "operator.key.pem")
    async with Client(stack.gateway_address, tls=tls) as client:
        task = await client.submit(
            "sim-hello", request=api.SubmitTaskRequest(agent=task_pb2.AgentSpec(model="sim-hello"))
        )
        assert (await client.wait(task.task_id, PATIENCE_SECONDS)).state == task_pb2.TASK_STATE_SUCCEEDED


LEAVE: Final = checkpoint_pb.Transition(to_state=task_pb2.TASK_STATE_QUEUED, reason="WORKER_DRAINED")


def token_of(stack: Stack, holder: str) -> token_pb2.FencingToken:
    """A well-signed token of a claim of this holder."""
    claims = Claims(f"tasks/{uuid.uuid4()}", "default", 1 << 41, str(uuid.uuid4()), holder)
    return sign_claims(Signer.load(stack.layout.signing_key), claims, datetime.now(UTC))


async def refusal_of(call: Any) -> str:
    with pytest.raises(TenureError) as refused:
        await call
    return refused.value.reason


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(("holder", "is_own"), [("stranger", True), ("stranger-2", True), ("worker-1", False)])
async def test_a_worker_presents_no_token_of_another(stack: Stack, tmp_path: Path, holder: str, is_own: bool) -> None:
    token = token_of(stack, holder)
    tls = issued(tmp_path, authority_of(stack), Role.WORKER, stack.layout.certificates / "ca.pem")
    reasons = []
    async with (
        tenure_channel(stack.services["checkpoint"], tls) as ledger,
        tenure_channel(stack.services["tools"], tls) as tools,
    ):
        commit = checkpoint_pb.CommitRequest(
            token=token, commit_id=str(uuid.uuid4()), commit_number=1, transition=LEAVE
        )
        reasons.append(await refusal_of(CheckpointServiceStub(ledger).Commit(commit)))
        opened = CheckpointServiceStub(ledger).Open(checkpoint_pb.OpenRequest(token=token))
        reasons.append(await refusal_of(opened.read()))
        execute = tools_pb.ExecuteRequest(token=token, call_id="1.0", tool="list_files", arguments_json="{}")
        fence = tools_pb.FenceRequest(token=token)
        reasons.append(await refusal_of(ToolServiceStub(tools).Execute(execute).read()) if not is_own else "")
        reasons.append(await refusal_of(ToolServiceStub(tools).Fence(fence)) if not is_own else "")
    assert all((reason == "OTHER_HOLDER") is not is_own for reason in reasons), reasons


def tokens_of_others(stack: Stack) -> dict[str, token_pb2.FencingToken]:
    """Tokens that a coordinator signed for the worker called stranger, but not for the ledger and the tool service."""
    signer, now = Signer.load(stack.layout.signing_key), datetime.now(UTC)
    claims = Claims(
        f"tasks/{uuid.uuid4()}", "default", 1 << 41, str(uuid.uuid4()), "stranger", installation=DEFAULT_INSTALLATION
    )
    doors = (Audience.CHECKPOINT, Audience.TOOLS)
    mixed = sign_task_claims(signer, claims, now)
    mixed.provider_token.CopyFrom(sign_claims(signer, replace(claims, audiences=doors), now))
    return {
        "of a provider": sign_task_claims(signer, claims, now).provider_token,
        "of a lease": sign_claims(signer, replace(claims, audiences=(Audience.LEASE,)), now),
        "of another installation": sign_claims(signer, replace(claims, audiences=doors, installation="other"), now),
        "with a worker's token for providers": mixed,
    }


@pytest.mark.asyncio(loop_scope="module")
async def test_a_token_for_others_opens_nothing_of_ours(stack: Stack, tmp_path: Path) -> None:
    """What a provider received is worth nothing here, even with a worker's certificate."""
    tls = issued(tmp_path, authority_of(stack), Role.WORKER, stack.layout.certificates / "ca.pem")
    async with (
        tenure_channel(stack.services["checkpoint"], tls) as channel,
        tenure_channel(stack.services["tools"], tls) as tools_channel,
    ):
        ledger, tools = CheckpointServiceStub(channel), ToolServiceStub(tools_channel)
        for name, token in tokens_of_others(stack).items():
            execute = tools_pb.ExecuteRequest(token=token, call_id="1.0", tool="list_files", arguments_json="{}")
            assert await refusal_of(tools.Execute(execute).read()) == "WRONG_AUDIENCE", name
            if token.HasField("provider_token"):
                continue  # the token itself is a worker's own
            commit = checkpoint_pb.CommitRequest(token=token, commit_id=str(uuid.uuid4()), commit_number=1)
            commit.transition.CopyFrom(LEAVE)
            calls = {
                "Commit": ledger.Commit(commit),
                "Open": ledger.Open(checkpoint_pb.OpenRequest(token=token)).read(),
                "Fence": tools.Fence(tools_pb.FenceRequest(token=token, close=True)),
                "ListTools": tools.ListTools(tools_pb.ListToolsRequest(token=token)),
                "DigestFiles": tools.DigestFiles(tools_pb.DigestFilesRequest(token=token, paths=["a"])),
            }
            reasons = {method: await refusal_of(call) for method, call in calls.items()}
            assert reasons == dict.fromkeys(calls, "WRONG_AUDIENCE"), name


@pytest.mark.asyncio(loop_scope="module")
async def test_a_worker_opens_no_session_of_another(stack: Stack, tmp_path: Path) -> None:
    tls = issued(tmp_path, authority_of(stack), Role.WORKER, stack.layout.certificates / "ca.pem")
    async with tenure_channel(stack.services["coordinator"], tls) as coordinator:
        hello = coordinator_pb.Hello(worker_id="worker-1", free_slots=1)
        call: Any = CoordinatorServiceStub(coordinator).Session(
            iter([coordinator_pb.SessionRequest(hello=hello)]), timeout=CALL_SECONDS
        )
        assert await refusal_of(call.read()) == "OTHER_HOLDER"


OTHERS_TAGS: Final = (2, 3)
Token = token_pb2.FencingToken


def commit_frames(own: Token, other: Token) -> list[checkpoint_pb.CommitStreamRequest]:
    """A frame with a commit of the caller's own and one of another holder, and a second frame with another one."""

    def tagged(tag: int, token: Token) -> checkpoint_pb.TaggedCommit:
        commit_id = str(uuid.uuid4())
        commit = checkpoint_pb.CommitRequest(token=token, commit_id=commit_id, commit_number=1, transition=LEAVE)
        return checkpoint_pb.TaggedCommit(tag=tag, commit=commit)

    frames = [[tagged(1, own), tagged(2, other)], [tagged(3, other)]]
    return [checkpoint_pb.CommitStreamRequest(commits=commits) for commits in frames]


def execute_frames(own: Token, other: Token) -> list[tools_pb.ExecuteStreamRequest]:
    """The same with calls."""

    def tagged(tag: int, token: Token) -> tools_pb.TaggedExecute:
        call = tools_pb.ExecuteRequest(token=token, call_id="1.0", tool="no_such_tool", arguments_json="{}")
        return tools_pb.TaggedExecute(tag=tag, call=call)

    frames = [[tagged(1, own), tagged(2, other)], [tagged(3, other)]]
    return [tools_pb.ExecuteStreamRequest(calls=calls) for calls in frames]


async def refusals_by_tag(stream: Any) -> dict[int, str]:
    """The reasons of the refused requests of a stream of frames."""
    answers = [each async for answer in stream for each in (getattr(answer, "results", None) or answer.events)]
    return {each.tag: each.refusal.reason for each in answers if each.HasField("refusal")}


@pytest.mark.asyncio(loop_scope="module")
async def test_no_method_takes_the_token_of_another_holder(stack: Stack, tmp_path: Path) -> None:
    """Each method for workers that needs a token, and of a stream each request of each frame."""
    tls = issued(tmp_path, authority_of(stack), Role.WORKER, stack.layout.certificates / "ca.pem")
    own, other = token_of(stack, "stranger"), token_of(stack, "worker-1")
    commit = checkpoint_pb.CommitRequest(token=other, commit_id=str(uuid.uuid4()), commit_number=1, transition=LEAVE)
    usage = checkpoint_pb.ReportUsageRequest(token=other, step=1, attempt_number=1)
    usage.usage.output_tokens = 1
    execute = tools_pb.ExecuteRequest(token=other, call_id="1.0", tool="list_files", arguments_json="{}")
    async with (
        tenure_channel(stack.services["checkpoint"], tls) as channel,
        tenure_channel(stack.services["tools"], tls) as tools_channel,
    ):
        ledger, tools = CheckpointServiceStub(channel), ToolServiceStub(tools_channel)
        calls = {
            "CheckpointService/Commit": ledger.Commit(commit),
            "CheckpointService/Open": ledger.Open(checkpoint_pb.OpenRequest(token=other)).read(),
            "CheckpointService/ReportUsage": ledger.ReportUsage(usage),
            "ToolService/DigestFiles": tools.DigestFiles(tools_pb.DigestFilesRequest(token=other, paths=["a"])),
            "ToolService/Execute": tools.Execute(execute).read(),
            "ToolService/Fence": tools.Fence(tools_pb.FenceRequest(token=other, close=True)),
            "ToolService/ListTools": tools.ListTools(tools_pb.ListToolsRequest(token=other)),
        }
        reasons = {method: await refusal_of(call) for method, call in calls.items()}
        streams = {
            "CheckpointService/CommitStream": ledger.CommitStream(
                iter(commit_frames(own, other)), timeout=CALL_SECONDS
            ),
            "ToolService/ExecuteStream": tools.ExecuteStream(iter(execute_frames(own, other)), timeout=CALL_SECONDS),
        }
        by_tag = {method: await refusals_by_tag(stream) for method, stream in streams.items()}
    assert reasons == dict.fromkeys(calls, "OTHER_HOLDER")
    for method, refusals in by_tag.items():
        assert {tag: refusals[tag] for tag in OTHERS_TAGS} == dict.fromkeys(OTHERS_TAGS, "OTHER_HOLDER"), method
        assert refusals.get(1) != "OTHER_HOLDER", method
    with_tokens = {method for method, row in matrix().items() if row.needs_token and "worker" in row.callers}
    assert calls.keys() | streams.keys() == with_tokens
