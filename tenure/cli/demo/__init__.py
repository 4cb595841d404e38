"""`tenure demo`: runs one task, breaks its workers, and judges whether Tenure kept its promises.

command.py    the command
run.py        one run, its last line and its exit code
play.py       the acts, in order; waits with a limit
board.py      all that was observed: events, entries, refused writes, claim holders
judgement.py  the promises, a pure function of what was observed; counts of effects and model calls outside of Tenure
screen.py     the board as one screen, or as plain lines
"""
