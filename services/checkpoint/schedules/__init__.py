"""Schedules: rules that submit a task at each due time.

servicer.py  ScheduleService: create, update, pause, resume, trigger and delete
sweeping.py  the duty that finds schedules with due times
runs.py      decides, records and starts the due times of one schedule in one transaction
rows.py      the row of a schedule, and the records of its runs
"""
