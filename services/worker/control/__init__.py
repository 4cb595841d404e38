"""Control functions: code of the user that a worker runs as a task, without a model.

functions.py      loads the functions from the modules that the settings name
loop.py           the loop `control`: answers the function's requests, and writes for it
function_run.py   the coroutine of the function: its steps and calls become requests to the loop
"""
