"""Tool calls with arguments made from the tools' own schemas, hostile in places: each comes to an outcome."""

from __future__ import annotations

import json
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenure.v1 import tool_pb2, tool_service_pb2
from tests.fuzz.calling import Code, call, check_answer
from tests.fuzz.hostile import INT64, TEXTS
from tests.fuzz.methods import method_named
from tests.fuzz.profile import examples
from tests.fuzz.world import Owner, World
from tests.support.patience import CALL_SECONDS

pytestmark = [
    pytest.mark.server,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(3600),
    pytest.mark.faults,
]

EXECUTE: Final = method_named("tools-ToolService.Execute")
FENCE: Final = method_named("tools-ToolService.Fence")
LIST: Final = method_named("tools-ToolService.ListTools")
TOOLS: Final = ("write_file", "read_file", "list_files", "append_record", "append_record_unsafe", "web_search")
WORDS: Final = st.sampled_from([*TEXTS, "\ud83d", "a.txt", "folder/../../x", "/proc/self/mem", "x/" * 600])
VALUES: Final = st.recursive(
    st.none() | st.booleans() | st.sampled_from(INT64) | st.floats() | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3),
    max_leaves=5,
)
RAW: Final = st.sampled_from(["", "{", "[]", "null", "NaN", '{"path": NaN}', '{"a":1,"a":2}', "[" * 5000, '"\\ud83d"'])


@examples(60)
@given(data=st.data())
async def test_a_call_with_any_arguments_gets_an_outcome(world: World, data: Any) -> None:
    owner = await _owner(world)
    schemas = await _schemas(world, owner)
    tool = data.draw(st.sampled_from(sorted(set(TOOLS) & set(schemas))))
    arguments = data.draw(RAW | _arguments(schemas[tool]).map(json.dumps))
    call_id = f"{data.draw(st.integers(1, 10**6))}.{data.draw(st.integers(0, 10**6))}"
    request = tool_service_pb2.ExecuteRequest(
        token=owner.token, call_id=call_id, tool=tool, arguments_json=arguments, output_limit_bytes=4096
    )
    request.timeout.seconds = 5
    answer = await call(world.bare["tools"], EXECUTE, [request], seconds=CALL_SECONDS)
    world.tally.codes[str(EXECUTE), answer.code.name] += 1
    check_answer(EXECUTE, [request], answer)
    world.check_processes()
    assert answer.code is not Code.DEADLINE_EXCEEDED, f"it never came to an outcome: {request}"
    if answer.code is Code.OK:
        assert answer.messages[-1].HasField("outcome"), (request, answer)
        records = [one for one in await _calls(world, owner) if one.call_id == call_id]
        assert all(record.state not in _UNDER_WAY for record in records), (request, records)


_UNDER_WAY: Final = frozenset((tool_pb2.CALL_STATE_ACCEPTED, tool_pb2.CALL_STATE_STARTED))
_owners: dict[int, Owner] = {}


async def _owner(world: World) -> Owner:
    """One task for all calls of a world."""
    if id(world) not in _owners:
        _owners[id(world)] = await world.owned()
    return _owners[id(world)]


async def _schemas(world: World, owner: Owner) -> dict[str, Any]:
    answer = await call(world.bare["tools"], LIST, [tool_service_pb2.ListToolsRequest(token=owner.token)])
    return {tool.name: json.loads(tool.input_schema_json) for tool in answer.messages[0].tools}


async def _calls(world: World, owner: Owner) -> list[tool_pb2.CallRecord]:
    answer = await call(world.bare["tools"], FENCE, [tool_service_pb2.FenceRequest(token=owner.token)])
    assert answer.code is Code.OK, answer
    return list(answer.messages[0].calls)


def _arguments(schema: dict[str, Any]) -> st.SearchStrategy[Any]:
    """An object with the schema's properties: mostly of their type, the values hostile; some missing, some others."""
    of_type = {
        "string": WORDS,
        "integer": st.sampled_from(INT64),
        "number": st.floats(allow_nan=False),
        "boolean": st.booleans(),
    }
    named = {name: of_type.get(one.get("type"), VALUES) | VALUES for name, one in schema.get("properties", {}).items()}
    return st.fixed_dictionaries({}, optional=named) | st.fixed_dictionaries(named) | VALUES
