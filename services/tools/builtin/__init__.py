"""The built-in tools.

files.py    read_file, write_file, list_files and delete_file: the files of the task's workspace
outputs.py  record_output: states a downstream output of the task
python.py   execute_python: runs a program in the sandbox
records.py  append_record and append_record_unsafe: a line in a file outside the workspace, KEYED and UNSAFE
waiting.py  request_approval, ask_user, wait_external and spawn_sub_agents: begin a wait

What to touch when:
- a tool is added: a function here that returns its `Tool`, and toolbox.py, which registers it
"""
