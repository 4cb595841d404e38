"""The lives of runners: which process runs calls, whether it is trusted, and when it is proven dead.

liveness.py   this runner's row, renewed      identity.py   who a process is on its machine
proof.py      that a life is over: who vouches for the end of its calls
"""
