"""`tenure demo`: the main job, shown and judged.

command.py      its options                           board.py      everything that was seen so far
command.py  one run, its last line, exit code     judgement.py  the promises: a pure function
command.py      plays while somebody watches          board.py    who held the task, read from its ledger
play.py         the acts, in order                    judgement.py    effects and model calls, counted outside
play.py      waits that end and say for what       screen.py     the board on one screen; screen.py: in lines
"""
