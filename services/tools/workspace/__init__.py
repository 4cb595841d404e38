"""The tasks' files: directories that agents' programs write what they like into, and nobody is led astray by.

directories.py   where they are; ways in            beneath.py   opening without following any link
bounds.py        how much a workspace may hold      copying.py   one file's content into another
requests.py      what people ask of files: reading.py, reading.py, copying.py (for forks), requests.py (as messages)
sweep.py         the files of forgotten tasks go    removal.py   one directory, whatever is in it
"""
