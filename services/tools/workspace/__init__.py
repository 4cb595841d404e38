"""The files of tasks: directories in which agents' programs may write anything, and which no link leads out of.

directories.py   where the workspaces are, and how they are opened
beneath.py       opens paths below a directory without following links
bounds.py        how much a workspace may hold
requests.py      the files of a task over RPC: list, read, copy and keep
kept.py          content of workers that is too large for the ledger
reading.py       lists a directory in pages, and reads one file
copying.py       copies a workspace for a fork
removal.py       removes one directory in steps, whatever is in it
sweep.py         removes the files of forgotten tasks
"""
