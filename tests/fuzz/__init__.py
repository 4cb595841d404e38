"""Generated requests against real services: each test is bounded, and TENURE_EXAMPLES multiplies its examples.

hostile.py    values that break programs, by the type of a field
messages.py   strategies for whole messages, made from their descriptors: mostly valid, hostile in places
methods.py    every method of every service, found in the descriptors
calling.py    one call on a bare channel, and the laws that every answer obeys
world.py      the services, tasks in several states, and the control task that must be done at the end
"""
