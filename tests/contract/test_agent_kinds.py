"""The table of docs/agents.md of what works for which kind of agent: each cell has a test that tries it."""

from __future__ import annotations

from typing import Final

from tests.contract.sources import ROOT

KINDS: Final = ("agent without code", "Pydantic AI", "OpenAI Agents SDK", "function")
PYTHON, MODEL_CALLS = "conformance/test_python_agents", "conformance/test_worker_model_calls"
FORKS, IMAGES = "end_to_end/test_forks", "end_to_end/test_images"
REFUSED: Final = f"{PYTHON}::test_messages_to_functions_are_refused"
NEXT_CALL: Final = f"{PYTHON}::test_the_next_model_call_has_a_message"
INTERRUPTED: Final = f"{PYTHON}::test_an_interrupting_message_redirects_an_agent"
TURNS: Final = f"{PYTHON}::test_a_conversation_survives_kills_of_its_workers"
SHOWN: Final = "testing/test_agent_files::test_the_next_owner_shows_the_images_of_a_submit"
IN_REQUEST: Final = "unit/test_agents_conversations::test_each_image_is_in_the_request_after_its_text"
READ: Final = "testing/test_agent_files::test_a_function_reads_the_files_of_its_submit"
DECIDED: Final = "testing/test_approval_matrix::test_two_calls_at_once_are_decided_each"
REPLAYED: Final = "testing/test_replay_of_code::test_a_replay_runs_no_tool_of_the_agent"
RECORDED: Final = "testing/test_replay_of_code::test_the_record_answers_model_calls_without_a_model"
STEPS: Final = "testing/test_replay_of_code::test_a_replay_runs_no_step_of_a_function"
JOINED: Final = "fault/test_agent_model_calls::test_agents_next_worker_joins_its_call"
UNDONE: Final = "end_to_end/test_undo_own_tools::test_undo_waits_for_a_worker_with_its_own_tools"
TESTS: Final = {
    "a killed worker repeats no recorded step": (
        "conformance/test_worker_takeover::test_a_worker_killed_anywhere_costs_at_most_one_model_call",
        f"{PYTHON}::test_a_kill_in_a_keyed_tool_repeats_it_with_its_key",
        f"{PYTHON}::test_an_agent_of_the_openai_sdk",
        "conformance/test_worker_control::test_killed_workers_are_replaced_without_a_second_effect",
    ),
    "a model call in flight survives its worker": (
        "fault/test_model_calls::test_the_next_worker_joins_the_call_in_flight",
        JOINED,
        JOINED,
        JOINED,
    ),
    "reads messages while it works": (
        f"{FORKS}::test_words_to_a_running_task_are_read_at_its_next_model_call",
        NEXT_CALL,
        NEXT_CALL,
        REFUSED,
    ),
    "an [interrupting message](messages.md) stops its model call": (
        "conformance/test_worker_interrupts::test_an_interrupting_message_stops_the_call",
        INTERRUPTED,
        INTERRUPTED,
        REFUSED,
    ),
    "continues after its answer: a message, a fork with one": (
        f"{FORKS}::test_a_finished_task_is_continued_by_a_fork",
        TURNS,
        TURNS,
        REFUSED,
    ),
    "reads the files of a submit and of messages": (
        f"{IMAGES}::test_the_next_owner_shows_the_image_of_a_submit",
        IN_REQUEST,
        IN_REQUEST,
        READ,
    ),
    "sees [images](models.md#images)": (f"{IMAGES}::test_the_images_of_messages_are_shown", SHOWN, SHOWN, READ),
    "people approve calls of tools, those of an answer together": (
        "conformance/test_parallel_approvals::test_kill_keeps_the_decisions_on_equal_calls",
        DECIDED,
        DECIDED,
        "end_to_end/test_control::test_a_function_asks_a_person_and_goes_on_with_the_answer",
    ),
    "`tenure tasks undo` makes the compensations of its tools": (
        "end_to_end/test_undo::test_command_undoes_in_reverse_and_only_once",
        UNDONE,
        UNDONE,
        "end_to_end/test_undo_own_tools::test_worker_killed_in_an_undo_with_own_tools",
    ),
    "a cap is compared before each model call": (
        "conformance/test_worker_tasks::test_the_token_limit_ends_a_task_and_is_never_overshot",
        f"{PYTHON}::test_a_denied_budget_ends_the_task_before_the_call",
        "edges/openai_agents/test_agents_openai::test_the_model_gets_the_output_that_the_budget_granted",
        f"{MODEL_CALLS}::test_a_reached_cap_ends_the_task_with_its_last_text",
    ),
    "watchers see the text while it is written": (
        "conformance/test_worker_tasks::test_live_text_is_the_text_of_the_answer",
        f"{PYTHON}::test_text_is_live_and_a_cancelled_call_is_billed",
        "edges/openai_agents/test_agents_openai_calls::test_text_of_a_stream_is_reported_as_it_comes",
        f"{MODEL_CALLS}::test_watchers_see_the_text_while_it_is_written",
    ),
    "[replay](testing.md#recorded-runs) with another model": (
        "testing/test_replay::test_another_model_reads_the_recorded_outcomes",
        REPLAYED,
        REPLAYED,
        STEPS,
    ),
    "replay without a model: the record answers": (
        "testing/test_replay::test_a_replay_says_what_it_cannot_do",
        RECORDED,
        RECORDED,
        STEPS,
    ),
}


def test_each_cell_has_a_test() -> None:
    section = (ROOT / "docs/agents.md").read_text().split("## What works for which kind of agent")[1].split("\n## ")[0]
    head, _, *rows = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("|")]
    assert [cell.strip() for cell in head[1:]] == [*KINDS]
    assert [row[0].strip() for row in rows] == [*TESTS]
    assert all(len(row) == len(KINDS) + 1 for row in rows)
    missing = {
        test
        for tests in TESTS.values()
        for test in tests
        if f"def {test.partition('::')[2]}(" not in (ROOT / f"tests/{test.partition('::')[0]}.py").read_text()
    }
    assert missing == set()
