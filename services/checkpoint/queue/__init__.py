"""The queue: tasks that wait for a claim, and everything that returns a task to it.

queue.py     the requests of coordinators: offers, pending endings, grants, inspection of claims
offering.py  offers in fair order, and the limit of a tenant's running tasks
stops.py     the stops of operators, and the processes that keep to them
requeue.py   returns the tasks of lost claims to the queue
due.py       which sweeps have work, and which duties wait for it
sweeps.py    what is due by time: starts, retries, deadlines, phase timeouts
admitting.py admits the tasks that wait in the lines of their sources
depth.py     the depth of each queue, and the oldest tasks, for operators and autoscalers
backlog.py   how many deliveries and calls in doubt wait, for metrics
"""
