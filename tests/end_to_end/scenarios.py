"""What the model does in these tests. The goal of a task names the file its effects go to."""

from __future__ import annotations

from typing import Any, Final

from tests.support.images import png


def append(tool: str, line: str, delay_ms: int = 0) -> dict[str, Any]:
    return {"name": tool, "arguments": {"file": "{{goal}}", "line": line, "delay_ms": delay_ms}}


def paced(number: int) -> dict[str, Any]:
    calls = [append("append_record", f"keyed {number}"), append("append_record_unsafe", f"unsafe {number}")]
    return {"text": f"Turn {number}.", "latency_ms": 400, "calls": calls}


def recording_turns(count: int, latency_ms: int) -> list[dict[str, Any]]:
    """Turns with one keyed and one unsafe effect each, and a last answer."""
    return [*(paced(number) | {"latency_ms": latency_ms} for number in range(1, count + 1)), {"text": "All is done."}]


def effects_of_turns(count: int) -> list[str]:
    """The effects of `recording_turns`, sorted."""
    return sorted(f"{kind} {number}" for kind in ("keyed", "unsafe") for number in range(1, count + 1))


def keyed(number: int) -> dict[str, Any]:
    return {"text": f"Turn {number}.", "latency_ms": 300, "calls": [append("append_record", f"keyed {number}")]}


def reading(number: int) -> dict[str, Any]:
    """A turn whose answer and result are about 150 and 500 tokens long."""
    text = f"Turn {number}. [turn {{{{turn}}}}] ".ljust(600, ".")
    return {"text": text, "calls": [{"name": "read_file", "arguments": {"path": "facts.txt"}}]}


def writing(**contents: str) -> dict[str, Any]:
    calls = [{"name": "write_file", "arguments": {"path": path, "content": text}} for path, text in contents.items()]
    return {"text": "Some files.", "calls": calls}


def recording(kind: str, **arguments: str) -> dict[str, Any]:
    return {"name": "record_output", "arguments": {"kind": kind, **arguments}}


def asking_leave(line: str) -> dict[str, Any]:
    return {"text": f"Line {line}.", "calls": [append("append_record_unsafe", line)]}


def asking_by_goal() -> dict[str, Any]:
    arguments = {"file": "leaves", "line": "{{goal}}"}
    return {"text": "A line.", "calls": [{"name": "append_record_unsafe", "arguments": arguments}]}


def one_slow(tool: str, arguments: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"text": "One call.", "calls": [{"name": tool, "arguments": arguments}]}, {"text": "That was it."}]


def spawning(text: str, *goals: str, **more: Any) -> dict[str, Any]:
    """A turn that is billed 300 tokens of output, whatever it says."""
    calls = [{"name": "spawn_sub_agents", "arguments": {"goals": list(goals), **more}}]
    return {"text": text, "calls": calls, "usage": {"output_tokens": 300}}


def last_words(text: str) -> dict[str, Any]:
    return {"text": text, "usage": {"output_tokens": 300}}


def branches(last: str) -> list[str]:
    """The goals of five agents below, each of which has two below itself."""
    return [*(f"branch {number} {{{{goal}}}}" for number in range(1, 5)), f"{last} 5 {{{{goal}}}}"]


SLOW_PROGRAM: Final = "import time\nopen('ran.txt', 'a').write('x')\ntime.sleep(3)\nprint(len(open('ran.txt').read()))"

TENURE: Final = {"name": "Tenure", "entityType": "system", "observations": ["It keeps its tasks."]}
NOTING: Final = "open('notes.txt', 'a').write('note {number}\\n')\nprint(open('notes.txt').read(), end='')"

PICTURE: Final = png(64, 48)
DRAWING: Final = f"open('picture.png', 'wb').write({PICTURE!r})"

FACTS: Final = "A fact of twenty-one. " * 90

PRICES: Final = """
[models.sim-e2e-priced]
input = 0
output = 1000

[models.sim-by-goal]
input = 0
output = 1000
"""
"""A tenth of a cent for each token of its answers."""

SCENARIOS: Final[dict[str, Any]] = {
    "team-long": [
        {"text": "Others.", "calls": [{"name": "spawn_sub_agents", "arguments": {"goals": ["long one", "long two"]}}]},
        {"text": "Never."},
    ],
    # 16 agents, for the model sim-by-goal: in the end the root's result has those of all others in it.
    "tree": [spawning("Five.", *branches("branch")), last_words("{{result.0.0}}")],
    "branch": [spawning("Two.", "leaf a {{goal}}", "leaf b {{goal}}"), last_words("{{result.0.0}}")],
    "leaf": [
        {
            "text": "Noted.",
            "calls": [{"name": "append_record", "arguments": {"file": "leaves", "line": "{{goal}}"}}],
            "usage": {"output_tokens": 300},
        },
        last_words("{{goal}}"),
    ],
    # A call that asks, then two sub-agents with such a call each, for the model sim-by-goal.
    "asking-tree": [
        asking_by_goal(),
        spawning("Two.", "asking-leaf a {{goal}}", "asking-leaf b {{goal}}"),
        {"text": "That was it."},
    ],
    "asking-leaf": [asking_by_goal(), {"text": "That was it."}],
    # As the tree, but the root goes on writing, and its last two leaves would never end: no parent waits for them long.
    "dear-tree": [
        spawning("Five.", *branches("hasty")),
        {
            "text": "A report.",
            "calls": [{"name": "append_record", "arguments": {"file": "reports", "line": "{{goal}}"}}],
            "usage": {"output_tokens": 850},
            "repeat": 8,
        },
        last_words("{{result.0.0}}"),
    ],
    "hasty": [
        spawning("Two.", "long a {{goal}}", "long b {{goal}}", deadline_seconds=1),
        last_words("{{result.0.0}}"),
    ],
    # Eight agents, whose own caps together exceed that of the root, because two calls of one turn share the same rest.
    "spending": [
        {
            "text": "Eight.",
            "calls": [
                {"name": "spawn_sub_agents", "arguments": {"goals": [f"spender {name} {{{{goal}}}}" for name in names]}}
                for names in ("abcd", "efgh")
            ],
            "usage": {"output_tokens": 300},
        },
        last_words("{{result.0.0}}"),
    ],
    "spender": [
        {
            "text": "A part.",
            "calls": [{"name": "append_record", "arguments": {"file": "spent", "line": "{{goal}}"}}],
            "usage": {"output_tokens": 850},
            "repeat": 3,
        },
        last_words("{{goal}}"),
    ],
    # Three of those, and one that waits for a signal: their parent waits on when they have ended at the cap.
    "outlived": [
        {
            "text": "Four.",
            "calls": [
                {"name": "spawn_sub_agents", "arguments": {"goals": [f"{goal} {{{{goal}}}}"]}}
                for goal in ("e2e-event", "spender a", "spender b", "spender c")
            ],
            "usage": {"output_tokens": 300},
        },
        last_words("{{result.0.0}}"),
    ],
    "e2e-paced": [*map(paced, range(1, 9)), {"text": "All is done."}],
    "e2e-keyed-paced": [*map(keyed, range(1, 6)), {"text": "All is done."}],
    # Its second answer takes longer than a request or two, on a busy machine.
    "e2e-keyed-waiting": [keyed(1), {**keyed(2), "latency_ms": 4000}, *map(keyed, (3, 4, 5)), {"text": "All is done."}],
    # Its second answer takes longer than a command needs to start on a loaded machine.
    "e2e-keyed-late": [keyed(1), {**keyed(2), "latency_ms": 15_000}, *map(keyed, (3, 4, 5)), {"text": "All is done."}],
    "e2e-keyed": one_slow("append_record", {"file": "{{goal}}", "line": "once", "delay_ms": 3000}),
    "e2e-unsafe": one_slow("append_record_unsafe", {"file": "{{goal}}", "line": "at most once", "delay_ms": 3000}),
    "e2e-provider": one_slow("stock__move_stock", {"item": "{{goal}}", "delta": 3}),
    "e2e-provider-unsafe": one_slow("stock__ship", {"item": "{{goal}}", "quantity": 3}),
    "e2e-unsafe-at-once": one_slow("append_record_unsafe", {"file": "{{goal}}", "line": "at most once"}),
    "e2e-outputs": [
        writing(**{"a.md": "stays", "b.md": "changes", "c.md": "goes"}),
        {
            "text": "These are for you.",
            "latency_ms": 400,
            "calls": [
                *(
                    recording(kind, path=f"{name}.md")
                    for kind, name in (("report", "a"), ("draft", "b"), ("draft", "c"))
                ),
                recording("ticket", uri="https://tickets.example/7", description="the follow-up"),
                recording("report", path="never.md"),
            ],
        },
        {
            "text": "And still at work.",
            "latency_ms": 400,
            "calls": [
                {"name": "write_file", "arguments": {"path": "b.md", "content": "changed"}},
                {"name": "delete_file", "arguments": {"path": "c.md"}},
            ],
        },
        # Tests kill the worker after the third turn: until then it has this answer to wait for.
        {"text": "That was it.", "latency_ms": 4000},
    ],
    "e2e-idempotent": one_slow("execute_python", {"code": SLOW_PROGRAM}),
    "e2e-python-bound": one_slow("execute_python", {"code": "while True: pass", "timeout_seconds": 1}),
    "e2e-pure": [
        {"text": "First a file.", "calls": [{"name": "write_file", "arguments": {"path": "a.txt", "content": "abc"}}]},
        {"text": "Read it.", "calls": [{"name": "read_file", "arguments": {"path": "a.txt"}}]},
        {"text": "That was it."},
    ],
    # Of 250 tokens, and a call.
    "e2e-priced": [
        {
            "text": "It is worth its price. ".ljust(1000, "."),
            "calls": [{"name": "write_file", "arguments": {"path": "a.txt", "content": "a"}}],
        },
        {"text": "That was it."},
    ],
    "e2e-hostile-tools": [
        {
            "text": "One plain call, one with a wrapper, one with other keys.",
            "calls": [
                {"name": "odd__good", "arguments": {"text": "hello"}},
                {"name": "odd__top_any", "arguments": {"arguments": {"b": "x"}}},
                {"name": "odd__dollar", "arguments": {"_filter": "y", "_top": 3}},
            ],
        },
        {"text": "{{result.0.0}} {{result.0.1}} {{result.0.2}}"},
    ],
    "e2e-mcp": [
        {
            "text": "Two servers.",
            "calls": [
                {"name": "files__write_file", "arguments": {"path": "/work/asked.txt", "content": "{{goal}}"}},
                {"name": "memory__create_entities", "arguments": {"entities": [TENURE]}},
            ],
        },
        {
            "text": "What did they keep?",
            "calls": [
                {"name": "read_file", "arguments": {"path": "asked.txt"}},
                {"name": "memory__read_graph", "arguments": {}},
            ],
        },
        {"text": "They kept: {{result.1.0}}"},
    ],
    "e2e-event": [
        {"calls": [{"name": "wait_external", "arguments": {"correlation_id": "{{goal}}"}}]},
        {"text": "It came."},
    ],
    "e2e-overloaded": [{"text": "Never.", "fault": {"status": 529, "times": 1000}}],
    "e2e-leave": [*map(asking_leave, ("first", "second", "third")), {"text": "That was it."}],
    "e2e-one-leave": [asking_leave("only"), {"text": "That was it."}],
    # Its goal is in a call's arguments, a tool's output, the name of a file, the model's text and the result.
    # Draws an image, looks at it, and after a pause says what it sees.
    "e2e-vision": [
        {"text": "I draw.", "calls": [{"name": "execute_python", "arguments": {"code": DRAWING}}]},
        {"text": "I look.", "calls": [{"name": "read_file", "arguments": {"path": "picture.png"}}]},
        {"text": "Now I see {{images}}.", "latency_ms": 1500},
    ],
    "e2e-vision-told": [{"text": "I see {{images}}, and read: {{last_user_text}}"}],
    # Says what it sees after a pause.
    "e2e-vision-at-once": [
        {"text": "I see {{images}}.", "calls": [{"name": "read_file", "arguments": {"path": "facts.txt"}}]},
        {"text": "Now I see {{images}}, and the facts are {{result.0.0}}.", "latency_ms": 1500},
    ],
    "e2e-echoing": [
        {
            "text": "{{goal}}",
            "calls": [{"name": "write_file", "arguments": {"path": "{{goal}}.txt", "content": "{{goal}}"}}],
        },
        {"text": "Read it.", "calls": [{"name": "read_file", "arguments": {"path": "{{goal}}.txt"}}]},
        {"text": "{{result.1.0}}", "calls": [append("append_record_unsafe", "{{goal}}")]},
        {"text": "{{goal}}"},
    ],
    "e2e-shaped": [{"text": "There is one."}, {"text": "{}"}, {"text": '{"lines": 1}'}],
    # In this window the eighth call is the first for a summary.
    "e2e-long": {
        "window_tokens": 6000,
        "summary": {"text": "Facts were read."},
        "turns": [
            {
                "text": "[turn 0]",
                "calls": [{"name": "write_file", "arguments": {"path": "facts.txt", "content": FACTS}}],
            },
            *map(reading, range(1, 15)),
            {"text": "All is read. [turn {{turn}}]"},
        ],
    },
    "e2e-forbidden": [{"text": "Never.", "fault": {"status": 403, "times": 1000}}],
    "e2e-limited": [{"text": "Never.", "fault": {"status": 429, "retry_after_seconds": 600, "times": 1000}}],
    "e2e-slow-tool": one_slow("append_record", {"file": "{{goal}}", "line": "late", "delay_ms": 20_000}),
    "e2e-long-output": [
        {"text": "Much.", "calls": [{"name": "execute_python", "arguments": {"code": "print('0123456789' * 5000)"}}]},
        {
            "text": "A part of it.",
            "calls": [
                {"name": "read_file", "arguments": {"path": "outputs/1.0.txt", "offset": 20_005, "limit": 10}},
            ],
        },
        {"text": "{{result.1.0}}"},
    ],
    "e2e-noting": [
        *(
            {
                "text": f"Note {number}.",
                "latency_ms": 0 if number == 1 else 1500,
                "calls": [{"name": "execute_python", "arguments": {"code": NOTING.format(number=number)}}],
            }
            for number in (1, 2, 3)
        ),
        {"text": "{{result.2.0}}"},
    ],
    "e2e-redirected": [{"text": f"{'word ' * 100} You said: {{{{last_user_text}}}}", "deltas": 100}],
    "e2e-slow-answer": [{"text": "word " * 400, "latency_ms": 60000, "deltas": 200}],
}
