"""The lives of runners: which process runs calls, whether it may begin effects, and the proof that its life is over.

liveness.py   this process's runner row: its renewals, its trust window, its lives one after another
identity.py   the identity of a process on its machine, and whether such a process is dead
proof.py      records proof that a runner's life is over: none of its effects goes on or can begin
"""
