"""Schedules: tasks that come due again and again.

servicer.py   the methods                       store.py       what they do
sweeping.py   the duty that looks for due times  deciding.py    what one schedule does, in one transaction
starting.py   a run's task                       cancelling.py  the end of tasks that are in the way
rows.py       a schedule's row, and its runs
"""
