"""The console's modules that need no browser, in Node: the words for numbers and times, and the parser of streams."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest

from services.gateway.http.requests import ActBody, SubmitBody, TaskFilterQuery
from services.gateway.http.shapes import read_json, read_query
from services.gateway.http.tasks import filter_of, submit_of
from tenure.sdk.from_wire import task_info
from tenure.v1 import task_pb2

CONSOLE: Final = Path(__file__).parents[3] / "edges" / "console" / "files"


def run(node_path: Path, script: str, time_zone: str = "UTC") -> Any:
    """What the script says with say(value), in a module beside the console's."""
    text = f"const say = (value) => console.log(JSON.stringify(value));\n{script}"
    command = [str(node_path), "--input-type=module", "--eval", text]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        cwd=CONSOLE,
        env={**os.environ, "TZ": time_zone},
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def evaluated(node_path: Path, expression: str) -> Any:
    return run(node_path, f"import * as format from '{CONSOLE}/format.js'; say({expression});")


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        (
            "[0, 0.004, 0.05, 12.345, 1234.5].map(format.money)",
            ["$0.00", "less than $0.01", "$0.05", "$12.35", "$1,234.50"],
        ),
        (
            "[0.012, 0.34, 2, 41, 200, 7200, 273600].map(format.duration)",
            ["12 ms", "0.3 s", "2 s", "41 s", "3 min 20 s", "2 h", "3 days 4 h"],
        ),
        ("[format.count(1, 'step'), format.count(2345, 'step')]", ["1 step", "2,345 steps"]),
        ("[0, 512, 1536, 67108864].map(format.bytes)", ["0 B", "512 B", "1.5 KiB", "64 MiB"]),
        (
            "[-500, 41000, 200000, -7300000].map((ms) => format.relative(new Date(1e12 - ms).toISOString(), 1e12))",
            ["just now", "41 s ago", "3 min ago", "in 2 h"],
        ),
        ("[0, 2199023255560].map(format.epoch)", ["\u2013", "2.8"]),
        ("format.argumentsLine({order: '7', cents: 500, text: 'a\\nb'})", 'order="7" cents=500 text="a↵b"'),
        ("format.oneLine('a  b\\n c', 4)", "a b…"),
        (
            "[{approver: 'group:leads'}, {remind_webhook: 'money'}, {close_out: true}, {}].map(format.stepWords)",
            ["group:leads may answer too", "a reminder to the webhook money", "the task is closed out", "reported"],
        ),
    ],
)
def test_numbers_and_times_are_written_as_people_do(node: Path, expression: str, expected: Any) -> None:
    assert evaluated(node, expression) == expected


STREAM: Final = (
    ": comment\n\nid: 1\nevent: a\ndata: {}\n\nid: 2\r\nevent: b\r\ndata: [1,\r\ndata: 2]\r\n\r\n"
    "data: 3\r\revent: end\ndata: {}\n\nid: 9\ndata: 4\n\n"
)


def test_stream_is_read_across_any_cut(node: Path) -> None:
    script = f"""
        globalThis.document = {{}};
        const {{ Parser }} = await import("{CONSOLE}/stream.js");
        const text = {json.dumps(STREAM)};
        const read = (pieces) => {{
          const seen = [];
          const parser = new Parser((kind, data, id) => seen.push([kind, data, id ?? null]));
          pieces.forEach((piece) => parser.isOver || parser.feed(piece));
          return JSON.stringify([seen, parser.isOver]);
        }};
        const cuts = Array.from(text, (_, at) => read([text.slice(0, at), text.slice(at)]));
        const whole = read([text]);
        say([JSON.parse(whole), new Set([...cuts, read([...text])]).size, cuts[0] === whole]);
    """
    whole, different, is_same = run(node, script)
    assert whole == [[["a", {}, "1"], ["b", [1, 2], "2"], ["message", 3, None]], True]
    assert (different, is_same) == (1, True)


@pytest.mark.parametrize(
    ("need", "amounts", "expected"),
    [
        ({"suggested_tokens": 500, "suggested_cost_usd": "0.25"}, "500, 0.25", {}),
        ({"suggested_tokens": 500, "suggested_cost_usd": None}, "500, 0", {}),
        (
            {"suggested_tokens": 500, "suggested_cost_usd": "0.25"},
            "600, 0.25",
            {"extra_tokens": 600, "extra_cost": 0.25},
        ),
        ({"suggested_tokens": 0, "suggested_cost_usd": "0.25"}, "0, 1", {"extra_cost": 1}),
    ],
)
def test_suggested_amounts_are_not_named(node: Path, need: Any, amounts: str, expected: Any) -> None:
    """Who may approve may grant what was suggested; to name amounts needs another permission."""
    script = f"import {{ grantOf }} from '{CONSOLE}/grants.js'; say(grantOf({json.dumps(need)}, {amounts}));"
    assert run(node, script) == {"decision": "approve", **expected}


LONG_NUMBERS: Final = (
    '{"account":12345678901234567890,"text":"id 12345678901234567890 \\"7\\"","list":[-9007199254740993,7,0.5,1e3]}'
)


def test_long_numbers_keep_their_digits(node: Path) -> None:
    """JavaScript rounds them: a person would approve another number than the call has, and edit it unseen."""
    script = f"""
        const {{ parse, stringify }} = await import("{CONSOLE}/json.js");
        const {{ argumentsLine, pretty }} = await import("{CONSOLE}/format.js");
        const value = parse({json.dumps(LONG_NUMBERS)});
        say([stringify(value), pretty(value), argumentsLine(value), stringify(parse(pretty(value)))]);
    """
    written, shown, line, edited = run(node, script)
    expected = json.loads(LONG_NUMBERS)
    assert [json.loads(text) for text in (written, shown, edited)] == [expected] * 3
    assert line.startswith("account=12345678901234567890 ")


def test_no_text_is_taken_for_a_number(node: Path) -> None:
    """Not even the text by which another page marks a number."""
    script = f"""
        const {{ parse }} = await import("{CONSOLE}/json.js");
        const known = JSON.stringify({{ text: parse("12345678901234567890").toJSON() }});
        const other = await import("{CONSOLE}/json.js?another-page");
        say(other.stringify(other.parse(known)));
    """
    assert json.loads(run(node, script))["text"].endswith(" 12345678901234567890")


def test_a_lost_lease_is_described(node: Path) -> None:
    end = {"worker": "w", "epoch": 7, "renewal_count": 9, "unanswered_at": None}
    times = {"renewals": ["2026-11-23T07:00:00Z", "2026-11-23T07:00:02Z"], "lost_at": "2026-11-23T07:00:08Z"}
    unrenewed: dict[str, Any] = {"renewals": [], "lost_at": None}
    script = f"""
        const {{ leaseEnd }} = await import("{CONSOLE}/states.js");
        say([leaseEnd(null), leaseEnd({json.dumps({**end, **times})}), leaseEnd({json.dumps({**end, **unrenewed})})]);
    """
    absent, known, silent = run(node, script)
    assert absent is None
    assert re.fullmatch(r"It renewed its lease 9 times, last at .*:00:02; lost at .*:00:08, 6(\.0)? s later\.", known)
    assert silent == "It did not renew its lease after it attached to its coordinator."


def test_all_pages_of_a_list_are_read(node: Path) -> None:
    script = f"""
        const pages = {{ "": [["a", "b"], "2"], 2: [["c"], "3"], 3: [["d"], ""] }};
        globalThis.fetch = async (address) => {{
          const given = new URL(address, "http://gateway").searchParams;
          if (given.get("page_size") !== "2") throw new Error(address);
          const [workers, token] = pages[given.get("page_token") ?? ""];
          return new Response(JSON.stringify({{ workers, next_page_token: token }}));
        }};
        const {{ allOf }} = await import("{CONSOLE}/api.js");
        say(await allOf("/v1/workers", "workers", {{ page_size: 2 }}));
    """
    assert run(node, script) == ["a", "b", "c", "d"]


DEFINITIONS: Final = {
    "PYTHON": {"kind": "PYTHON", "approve_tools": []},
    "FUNCTION": {"kind": "FUNCTION", "approve_tools": []},
    "MODEL": {"kind": "MODEL", "approve_tools": ["pay"]},
    "": {"kind": ""},
}


def run_again(node_path: Path, spec: task_pb2.TaskSpec, kind: str) -> task_pb2.TaskSpec:
    """What "Run again" submits for a task with this spec."""
    task = task_info(task_pb2.Task(spec=spec, state=task_pb2.TASK_STATE_QUEUED)).to_json()
    script = f"""
        const {{ valuesOf }} = await import("{CONSOLE}/pages/agents.js");
        const {{ kept, ...values }} = valuesOf({json.dumps(task)}, {json.dumps(DEFINITIONS[kind])});
        say({{ ...kept, ...values }});
    """
    given = {name: value for name, value in run(node_path, script).items() if value not in ("", None, 0, [], {})}
    return submit_of(read_json(SubmitBody, given)).spec


@pytest.mark.parametrize("kind", ["PYTHON", "FUNCTION", ""])
def test_code_runs_again_as_it_was_submitted(node: Path, kind: str) -> None:
    spec = task_pb2.TaskSpec(goal="Refund it", control=task_pb2.ControlWork(function="shop", input_json='{"order": 7}'))
    if kind:
        spec.agent_pin.CopyFrom(task_pb2.AgentPin(agent="shop", revision=3))
    if kind != "FUNCTION":
        spec.agent.approve_tools.append("pay")
    again = run_again(node, spec, kind)
    assert (again.goal, again.control, again.agent) == (spec.goal, spec.control, spec.agent)


def test_run_again_keeps_what_the_submit_added_to_its_agent(node: Path) -> None:
    """What the definition says comes from the definition, which may be another one by now."""
    agent = task_pb2.AgentSpec(model="m", system="Be brief.", approve_tools=["pay", "send"])
    pin, schema = task_pb2.AgentPin(agent="writer", revision=3), '{"type": "string"}'
    again = run_again(
        node, task_pb2.TaskSpec(goal="go", agent=agent, agent_pin=pin, result_schema_json=schema), "MODEL"
    )
    assert again.control == task_pb2.ControlWork(function="writer")
    assert (again.agent, again.result_schema_json) == (task_pb2.AgentSpec(approve_tools=["send"]), "")


def test_run_again_declines_the_default_cap_again(node: Path) -> None:
    limits = task_pb2.Limits(money_cap=task_pb2.MONEY_CAP_NONE_SUBMITTED)
    assert run_again(node, task_pb2.TaskSpec(goal="go", limits=limits), "MODEL").limits.no_money_cap


def test_only_functions_and_undos_take_no_messages(node: Path) -> None:
    script = f"""
        const {{ noReader }} = await import("{CONSOLE}/pages/agents.js");
        const code = {{ function: {{ name: "shop" }}, undo_of: "" }};
        say(["PYTHON", "MODEL", "", "FUNCTION"].map((kind) => noReader(code, {{ kind }})));
    """
    assert run(node, script) == ["", "", "", "A function takes no messages."]


ADDRESS: Final = {
    "text": "refund order",
    "agent": "support@7",
    "queue": "mail",
    "label": "team=a=b",
    "reason": "worker_lost,lease_expired",
    "source": "scheduler/nightly",
    "since": "2026-11-29T07:00:00Z",
    "before": "2026-10-25T01:30:00.123456Z",
    "ended_since": "2026-11-29T07:00:00+01:00",
    "ended_before": "2026-11-29T07:00:30Z",
    "model": "claude",
    "min_cost": "0.1",
    "max_cost": "2",
    "min_duration": "0.5",
    "max_duration": "60",
    "root_task_id": "0199",
    "forked_from_task_id": "0198",
}
"""A list that is filtered in all ways. The clocks of Berlin show 2:30 twice in the night of `before`."""
OPENED: Final = f"""
    const {{ actOf, FILTERS, queryOf, Value }} = await import("{CONSOLE}/pages/filters.js");
    const opened = (texts) =>
      FILTERS.filter(({{ name }}) => name in texts).map((filter) => new Value(filter, texts[filter.name]));
"""


def test_an_act_has_the_filter_of_the_list(node: Path) -> None:
    """Otherwise it would act on other tasks than those that a person sees."""
    script = f"const values = opened({json.dumps(ADDRESS)}); say([queryOf(values), actOf(values), FILTERS]);"
    query, act, filters = run(node, OPENED + script)
    assert {one["name"] for one in filters} == set(ADDRESS)
    listed = read_query(TaskFilterQuery, query.items())
    acted = read_json(ActBody, {"act": "CANCEL", "filter": act}).filter
    assert acted == listed
    assert listed.root_task_id == "0199"


def test_an_address_means_the_same_times_everywhere(node: Path) -> None:
    """Also after its fields were left as they are. An address without a zone is one of an older console."""
    script = f"""
        const values = opened({{ ...{json.dumps(ADDRESS)}, since: "2026-11-29T07:00" }});
        const shown = values.map((value) => value.shown);
        for (const value of values) value.shown = value.shown;
        say([queryOf(values), Object.fromEntries(values.map(({{ filter }}, at) => [filter.name, shown[at]]))]);
    """
    (berlin, seen_there), (york, seen_here) = (
        run(node, OPENED + script, zone) for zone in ("Europe/Berlin", "America/New_York")
    )
    assert (seen_there["before"], seen_here["before"]) == ("2026-10-25T02:30:00.123", "2026-10-24T21:30:00.123")
    assert (berlin.pop("since"), york.pop("since")) == ("2026-11-29T06:00:00.000Z", "2026-11-29T12:00:00.000Z")
    assert berlin == york
    assert york["before"] == ADDRESS["before"]


def test_unreadable_values_of_the_address_are_sent(node: Path) -> None:
    """The gateway refuses it. A list without this filter would show tasks that were not asked for."""
    script = """
        const values = opened({ before: "yesterday", min_cost: "much" });
        const sent = [queryOf(values), actOf(values)];
        for (const value of values) value.shown = "";
        say([sent, values.map(({ text }) => text)]);
    """
    sent, after = run(node, OPENED + script)
    assert sent == [{"before": "yesterday", "min_cost": "much"}] * 2
    assert after == ["", ""]


def test_each_placeholder_is_read_by_its_filter(node: Path) -> None:
    script = """
        const isValue = ({ name, placeholder }) => placeholder && name !== "text" && !name.endsWith("_id");
        const examples = FILTERS.filter(isValue);
        say(examples.map((filter) => queryOf([new Value(filter, filter.placeholder)])));
    """
    examples = run(node, OPENED + script)
    assert len(examples) >= 4
    for example in examples:
        assert filter_of(read_query(TaskFilterQuery, example.items())).ListFields()
