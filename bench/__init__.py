"""Measurements of Tenure on the machine at hand: `make bench`, or `python -m bench latency --quick`.

figures.py    a figure and its bound       report.py     what a reader sees          machine.py  what it ran on
samples.py    percentiles and spreads      cpu.py        processor time by process   options.py  how long to measure
latency.py    submit, kill, freeze, drain  commits.py    durable commits             steps.py    an agent's steps
growth.py     bytes per step, resume       data_path.py  the data path alone: Postgres, checkpoint, tools
"""
