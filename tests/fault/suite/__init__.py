"""The fault suite: seeded traffic, seeded faults under it, and a checker that looks at everything that is left.

schedule.py      seed → what will be submitted, cancelled, watched and broken; pure, so that a seed replays
scenarios.py     what the model does for those tasks
installation.py  a whole stack on links that can be cut (links.py), whose dead are started again (keeper.py)
traffic.py       carries out the clients' part of a schedule, and writes down every operation (client_log.py)
stops.py         the stop of an operator, and the rules with bounds of a tenant
faults.py        carries out the rest: signals, stores, links, failpoints, the model
evidence.py      everything there is to know about a seed's tasks afterwards; verdict.py compares it with the promises
trial.py         one seed from its first submit to its verdict; run.py many, with figures

python -m tests.fault.suite --minutes 10 | --seeds 1..20 | --seed 7     (or: make faults)
"""
