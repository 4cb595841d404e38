"""`tenure demo`: the main job, shown and judged.

command.py      its options                           board.py      everything that was seen so far
performance.py  one run, its last line, exit code     judgement.py  the promises: a pure function
showing.py      plays while somebody watches          history.py    who held the task, read from its ledger
play.py         the acts, in order                    outside.py    effects and model calls, counted outside
waiting.py      waits that end and say for what       screen.py     the board on one screen; lines.py: in lines
"""
