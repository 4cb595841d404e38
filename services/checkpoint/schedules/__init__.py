"""Schedules: tasks that come due again and again.

servicer.py   the methods                       servicer.py       what they do
sweeping.py   the duty that looks for due times  runs.py    what one schedule does, in one transaction
runs.py   a run's task                       runs.py  the end of tasks that are in the way
rows.py       a schedule's row, and its runs
"""
