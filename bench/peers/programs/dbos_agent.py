"""The agent as a workflow of DBOS."""

from __future__ import annotations

from dbos import DBOS, DBOSConfig, SetWorkflowID

from bench.peers.programs import agent

DEFAULT_POOL_SIZE = 20


def main() -> None:
    options = agent.read_options()
    tool = agent.Tool(options)
    config: DBOSConfig = {
        "name": "peers",
        "system_database_url": options.store,
        "sys_db_pool_size": DEFAULT_POOL_SIZE + options.at_once,
        "log_level": "WARNING",
    }
    DBOS(config=config)

    @DBOS.step()
    def step(task: str, number: int) -> str:
        return tool.effect(task, number)

    @DBOS.workflow()
    def workflow(task: str) -> str:
        for number in range(1, agent.STEPS + 1):
            step(task, number)
        return "done"

    def run(task: str) -> None:
        with SetWorkflowID(task):
            workflow(task)

    DBOS.launch()  # it resumes the workflows of an executor with the same id, which is "local" by default
    agent.serve(lambda work: agent.in_threads(run, work.tasks, options.at_once))
    DBOS.destroy()


if __name__ == "__main__":
    main()
