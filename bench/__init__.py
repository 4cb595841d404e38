"""Measures Tenure on this machine: `make bench`, or `python -m bench latency --quick`.

__main__.py      the command: runs the measurements and prints the report
run.py           how long to measure, where the data goes, and the machine: cores, versions, fsync time, load
report.py        figures with their bounds, percentiles, and the report as tables and as JSON
baseline.py      the committed baseline of ratios, and what regressed against it
processes.py     processor time and memory by process
data_path.py     Postgres, the checkpoint service and the tool service; tasks whose claims the bench holds itself

latency.py       latency: submit, kill, freeze and drain to RUNNING
commits.py       commits: durable commits, next to the same statements without the service
null_agent.py    an agent without a model and a tool
steps.py         steps: steps of that agent, next to the same statements without the services; and
worker_steps.py  steps with worker, model client and model simulator, next to the library of the model provider alone
one_agent.py     one_agent: a step of one agent alone, next to the wall floor of a step
programs.py      programs: the time to a program's first line of output
scale.py         scale: what thousands of active tasks and streamed answers cost
sizing.py        `python -m bench.sizing`: the model of docs/sizing.md
peers/           `make bench-peers`: other engines beside Tenure, in one run

Measurements of single features were made once, and left with their code: commit 790a6c75 has them.
"""
