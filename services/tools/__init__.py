"""The tool service: runs tools behind its own fence and records each call.

The files, in the order in which data flows:

main.py               commands, settings, and how the parts are put together
settings.py           the settings from the environment
servicer.py           ToolService: verifies the fencing token, builds the call request
calls/                the protocol of a call: accept, start, effect, outcome; Fence; in doubt; call log
runners/              this process's life as a runner, and the proof that a runner's life is over

registry.py           the tools by name; checks a call before it runs
own_tools.py          checks a call whose tool its caller runs itself
schemas.py            JSON schemas of arguments, also from untrusted sources, within bounds
schema_fit.py         accepts arguments that plainly fit a plain schema, without the validator
tool.py               the interface of a tool: definition, call context, answers
sending.py            sends a call to another system, and repeats it only where that is harmless
answer_files.py       keeps the parts of an answer that are not text, and shows images
output.py             truncates output for the model and stores all of it in the workspace

toolbox.py            composes the registry from settings and edges
edge.py               what edges add: further tools and sources (see edges/)
sources.py            names and limits of the tools that a source describes
source_facts.py       the status of each tool source, for operators and metrics
pins.py               a tool of a source is offered only as it was accepted
rules/                the rules of tenants on tool calls, as this replica knows them
inspection.py         keeps programs of this uid from inspecting this process
builtin/              the built-in tools: programs, files, records, waits

programs.py           opens the sandbox, or serves nothing when a probe escaped from it
sandbox/              the sandbox in which agents' programs run
workspace/            the files of tasks

statements.py         the SQL statements and migrations
sweeps.py             deletes rows in batches
sql/                  queries.sql and the migrations of the schema `tools`

What to touch when:
- a built-in tool is added: builtin/, toolbox.py
- a new kind of tool source is added: an edge with a Section (sources.py) for its settings, edges/tools_config.py,
  edges/tools.py, `ToolSourceKind` in tenure/domain/tools.py
- a tool needs to know more about its call: `CallContext` in tool.py, `_run_once` in calls/running.py
- the service gets a setting: settings.py, main.py, and deploy/ where the default does not fit
"""
