"""A Work in memory: records like the ledger, and can be executed again. For tests of adapters, which need no services.

work = JournalWork("hello")
first = await function.run(work.begin(), None)
again = await function.run(work.begin(), None)  # from the record
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from services.worker.control.json_values import encode
from tenure.control.failures import NOT_REPLAYABLE, NotReplayable, ResultLost, StepFailed, failure_of_call
from tenure.control.model_calls import ModelCallAnswer, ModelCallReport, ModelCallRequest
from tenure.control.own_tools import EffectUnknown, OwnTool, OwnToolContext, ToolError
from tenure.control.work import RecordedCall
from tenure.domain.budget import TokenUsage
from tenure.domain.control import INTERRUPTED, MESSAGES
from tenure.domain.entries import ControlFailure, UserMessage
from tenure.domain.images import SubmittedFile
from tenure.domain.tools import Outcome, OutcomeStatus


@dataclass
class Report:
    max_output_tokens: int
    attempt: str = "task/1/1"
    texts: list[str] = field(default_factory=list)
    usages: list[TokenUsage] = field(default_factory=list)

    def on_text(self, block: int, text: str) -> None:
        self.texts.append(text)

    def on_usage(self, usage: TokenUsage, request_id: str = "") -> None:
        self.usages.append(usage)


@dataclass
class Call:
    task_id: str
    call_id: str
    call_attempt: int
    idempotency_key: str
    epoch: int = 1

    def emit(self, text: str) -> None: ...


@dataclass
class JournalWork:
    """`kinds`: what was recorded, in order. `denied`: the tools that a person does not approve.

    `outcomes`: the contents of calls, by tool, that a person resolved as happened. `interrupts`: the messages that
    interrupt a model call, by its number.
    """

    goal: str = ""
    task_id: str = "task"
    granted: int = 0
    replay_model: str = ""
    approve_tools: frozenset[str] = frozenset()
    denied: frozenset[str] = frozenset()
    answers: dict[str, str] = field(default_factory=dict)
    outcomes: dict[str, str] = field(default_factory=dict)
    journal: list[tuple[str, Any]] = field(default_factory=list)
    requests: list[ModelCallRequest] = field(default_factory=list)
    reports: list[Report] = field(default_factory=list)
    said: list[str | UserMessage] = field(default_factory=list)
    interrupts: dict[int, UserMessage] = field(default_factory=dict)
    heard: list[UserMessage] = field(default_factory=list)
    files: tuple[SubmittedFile, ...] = ()
    contents: dict[str, bytes] = field(default_factory=dict)
    is_blind: bool = False
    tools: list[OwnTool] = field(default_factory=list)
    position: int = 0
    busy: bool = False

    def begin(self) -> JournalWork:
        """The same work, executed from its beginning."""
        self.position = 0
        return self

    @property
    def key(self) -> str:
        return f"{self.task_id}/{self.position}"

    @property
    def kinds(self) -> list[str]:
        return [name for name, _ in self.journal]

    async def step(self, name: str, run: Callable[..., Any], /, *args: Any, timeout_seconds: float = 600) -> Any:
        async def made() -> Any:
            result = run(*args)
            return await result if isinstance(result, Awaitable) else result

        return await self._recorded(name, made)

    async def gather(self, *steps: tuple[str, *tuple[Any, ...]], timeout_seconds: float = 600) -> list[Any]:
        return [await self.step(step[0], *step[1:]) for step in steps]

    async def call_model(
        self, name: str, request: ModelCallRequest, run: Callable[[ModelCallReport], Awaitable[ModelCallAnswer]]
    ) -> Any:
        async def made() -> Any:
            self.requests.append(request)
            if request.interruptible and len(self.requests) in self.interrupts:
                self.said.append(self.interrupts.pop(len(self.requests)))
                return {"failure": asdict(INTERRUPTED)}
            self.reports.append(Report(self.granted or request.max_output_tokens))
            try:
                return {"result": (await run(self.reports[-1])).result}
            except Exception as error:  # noqa: BLE001  the run may raise anything
                return {"failure": asdict(failure_of_call(error).failure)}

        recorded = await self._recorded(name, made)
        if "failure" in recorded:
            raise StepFailed(name, ControlFailure(**recorded["failure"]))
        return recorded["result"]

    async def call_tool(self, tool: str, arguments: Mapping[str, Any] | None = None) -> str:
        async def made() -> str:
            return self.answers[tool]

        return str(await self._recorded(tool, made))

    async def call_tools(self, calls: Sequence[tuple[str, Mapping[str, Any]]]) -> list[Outcome]:
        raise NotImplementedError

    async def call_own_tools(self, calls: Sequence[tuple[OwnTool, Mapping[str, Any]]]) -> list[Outcome]:
        step = self.position + 1
        return [await self._call(f"{step}.{index}", tool, arguments) for index, (tool, arguments) in enumerate(calls)]

    async def recorded_calls(self) -> Sequence[RecordedCall]:
        return []

    async def read_file(self, file: SubmittedFile) -> bytes:
        return self.contents[file.path]

    async def image_for(self, model: str, file: SubmittedFile) -> bytes | None:
        if file.path not in self.contents:
            raise ResultLost(file.path, "it is not there any more")
        return None if self.is_blind else self.contents[file.path]

    async def new_messages(self) -> list[UserMessage]:
        """`said`: the messages that came since the last look."""
        is_recorded = self.position < len(self.journal) and self.kinds[self.position] == MESSAGES
        if not is_recorded and (self.position < len(self.journal) or not self.said):
            return []

        async def made() -> int:
            said, self.said = self.said, []
            self.heard += [UserMessage(each) if isinstance(each, str) else each for each in said]
            return len(self.heard)

        before = [json.loads(value) for name, value in self.journal[: self.position] if name == MESSAGES]
        return self.heard[max(before, default=0) : await self._recorded(MESSAGES, made)]

    async def _call(self, call_id: str, tool: OwnTool, arguments: Mapping[str, Any]) -> Outcome:
        call: OwnToolContext = Call(self.task_id, call_id, 1, f"{self.task_id}/{call_id}")

        async def made() -> Any:
            self.tools.append(tool)
            encode(dict(arguments), "the arguments")
            if (tool.needs_approval or tool.name in self.approve_tools) and tool.name in self.denied:
                return [OutcomeStatus.NOT_ALLOWED, "A person denied the call.", ""]
            if tool.name in self.outcomes:
                return [OutcomeStatus.SUCCEEDED, self.outcomes[tool.name], ""]
            try:
                return [OutcomeStatus.SUCCEEDED, await tool.run(call, arguments), ""]
            except Exception as error:  # noqa: BLE001  the tool may raise anything
                if isinstance(error, NotReplayable):
                    return [OutcomeStatus.FAILED, str(error), NOT_REPLAYABLE]
                if isinstance(error, EffectUnknown):
                    return [OutcomeStatus.IN_DOUBT, str(error), ""]
                if isinstance(error, ToolError):
                    return [OutcomeStatus.FAILED, str(error), error.detail]
                return [OutcomeStatus.FAILED, f"{type(error).__name__}: {error}", ""]

        status, content, detail = await self._recorded(f"tool {tool.name}", made)
        return Outcome(OutcomeStatus(status), content, detail=detail)

    async def _recorded(self, name: str, made: Callable[[], Awaitable[Any]]) -> Any:
        assert not self.busy, f"{name} began while another request was running"
        self.busy = True
        try:
            if self.position == len(self.journal):
                self.journal.append((name, json.dumps(await made())))
            recorded, value = self.journal[self.position]
            assert recorded == name, f"diverged: {recorded} is recorded, {name} is asked for"
            self.position += 1
            return json.loads(value)
        finally:
            self.busy = False
