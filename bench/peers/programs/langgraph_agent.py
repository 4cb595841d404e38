"""The agent as a graph of LangGraph, with its checkpoints in Postgres."""

from __future__ import annotations

from typing import Any, TypedDict

import psycopg
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.graph import END, START, StateGraph
from psycopg.rows import dict_row
from psycopg_pool import ConnectionPool

from bench.peers.programs import agent


class State(TypedDict):
    """The state holds the last result only. With all results, each checkpoint would write all of them again."""

    task: str
    step: int
    result: str


def main() -> None:
    options = agent.read_options()
    tool = agent.Tool(options)

    def step(state: State) -> dict[str, Any]:
        number = state["step"] + 1
        return {"step": number, "result": tool.effect(state["task"], number)}

    graph = StateGraph(State)
    graph.add_node("step", step)
    graph.add_edge(START, "step")
    graph.add_conditional_edges("step", lambda state: END if state["step"] == agent.STEPS else "step")
    connection = {"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row}
    with ConnectionPool(options.store, min_size=1, max_size=options.at_once, kwargs=connection) as pool:
        saver = PostgresSaver(pool)
        _create_tables(options.store, saver)
        compiled = graph.compile(checkpointer=saver)

        def run(task: str, *, is_resumed: bool) -> None:
            state = None if is_resumed else {"task": task, "step": 0, "result": ""}
            compiled.invoke(state, {"configurable": {"thread_id": task}}, durability="sync")

        agent.serve(
            lambda work: agent.in_threads(
                lambda task: run(task, is_resumed=work.is_resumed), work.tasks, options.at_once
            )
        )


def _create_tables(store: str, saver: PostgresSaver) -> None:
    """Creates the tables, under a lock: two programs on an empty database create them one after the other."""
    with psycopg.connect(store) as lock:
        lock.execute("select pg_advisory_xact_lock(1)")
        saver.setup()


if __name__ == "__main__":
    main()
