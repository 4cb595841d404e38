"""Measures Tenure on this machine: `make bench`, or `python -m bench latency --quick`.

__main__.py        the command: runs the measurements and prints the report
options.py         how long to measure, and where the data goes
machine.py         the machine of the measurements: cores, versions, fsync time, load
figures.py         a figure, its bound, and the section of a measurement
samples.py         percentiles and ranges
report.py          the report as tables and as JSON
baseline.py        the committed baseline of ratios, and what regressed against it
cpu.py             processor time by process

data_path.py       the data path as real processes: Postgres, the checkpoint service, the tool service
held_tasks.py      tasks whose claims the bench holds itself

latency.py         latency: submit, kill, freeze and drain to RUNNING
followed_task.py   a task that is watched through the public API
commits.py         commits: durable commits, next to the same statements without the service
commit_loads.py    writers in a closed loop, and random arrivals
bare_commits.py    the statements of commits, recorded and run again without the service
reserves.py        reserves: many agents under one budget
steps.py           steps: steps of agents
null_steps.py      steps without a model and a tool
null_agent.py      the agent of null_steps.py, one_agent.py and growth.py
one_agent.py       one_agent: a step of one agent alone, next to the wall floor of a step
wall_floor.py      three messages and three transactions, without Tenure
echo.py            `python -m bench.echo`: the other end of those messages
bare_steps.py      the statements of those steps, recorded and run again without the services
worker_steps.py    steps with worker, model client and model simulator, directly and by a model runner
first_text.py      the time to the first text of a model call
bare_agents.py     the model provider's library in a loop, without Tenure
growth.py          growth: bytes of an early and of a late step; the time to resume a long ledger
retention.py       retention: commits beside a prune; bytes of a task on disk
programs.py        programs: the time to a program's first line of output
program_starts.py  the ways of starting a program that are compared
streaming.py       streaming: processor time of a task whose answer is streamed
watchers.py        watchers: a thousand streams of one gateway
large_tables.py    large_tables: steps on empty tables and on those of a million ended tasks
bulk_rows.py       copies the rows of a task, for large tables
long_task.py       long_task: a takeover of a task with thousands of steps
rate_limits.py     rate_limits: 200 agents at the rate limit of a key, with and without the model runner's limiter
scale.py           scale: thousands of active tasks while workers are killed and services restarted
scale_load.py      the model, the tasks and the people of scale.py
scale_ledger.py    its pickups and takeovers, and lost and repeated work, from the ledger
process_use.py     processor time and memory by kind of process, while processes are replaced
memory.py          memory of a process
peers/             `make bench-peers`: other engines beside Tenure, in one run
input_estimate.py  `python -m bench.input_estimate`: the bound of a prompt's tokens, next to true counts
"""
