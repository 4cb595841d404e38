"""Control functions: code of the user that a worker runs as a task.

functions.py      loads the functions from the modules that the settings name
loop.py           the loop `control`: answers the function's requests, and writes for it
replay.py         the loop `replay` of a run of code: the record answers the function's requests
function_run.py   the coroutine of the function: its steps and calls become requests to the loop
callables.py      calls the functions of steps: coroutines here, plain functions in threads
json_values.py    the results of steps and calls as JSON
runner_calls.py   model calls at a model runner, which outlive this worker
model_calls.py    one attempt of a model call: its report, and the entries of its end
"""
