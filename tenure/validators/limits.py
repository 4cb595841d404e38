"""The numbers and shapes of the contract's constraints; senders keep within them too."""

from __future__ import annotations

import re
from typing import Final

MAX_GOAL_BYTES: Final = 256 * 1024
MAX_SYSTEM_BYTES: Final = 256 * 1024
MAX_OUTPUT_TOKENS: Final = 64_000
MIN_WINDOW_TOKENS: Final = 1024
MAX_WINDOW_TOKENS: Final = 10_000_000
MIN_OUTPUT_BYTES: Final = 1024
MAX_LABELS: Final = 32
MAX_APPROVE_TOOLS: Final = 128
MAX_ALLOWED_TOOLS: Final = 256
MAX_ALLOWED_TOOLS_BYTES: Final = 16 * 1024  # together: the names are in the claim's record in etcd and in each token
MAX_RESULT_CORRECTIONS: Final = 20
MOST_TOKENS: Final = 10**12  # of a task, and added to it: with what goes beyond it stays inside an int64
MOST_CALL_TOKENS: Final = 10**12  # of one model call: sums over a task's life stay inside an int64
MAX_ENTRIES: Final = 256
MAX_COMMIT_BYTES: Final = 1024 * 1024
MAX_ARGUMENT_BYTES: Final = 1024 * 1024
MAX_FRAME_ITEMS: Final = 128
MAX_FRAME_BYTES: Final = 2 * 1024 * 1024
MAX_CONTROL_JSON_BYTES: Final = 256 * 1024
MAX_WAIT_SECONDS: Final = 600
MAX_HOLDINGS: Final = 10_000
MAX_SLOTS: Final = 10_000
MAX_CHOICES: Final = 64
MOST_NAMED_CALLS: Final = 64
MOST_CALLS_IN_DOUBT: Final = 1024  # as many calls of a task may be open
MOST_DOUBTS_A_PAGE: Final = 500
MOST_CALL_ATTEMPTS: Final = 10**9
MAX_ID_CHARACTERS: Final = 64

TOOL_NAME: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}\Z")
FUNCTION_NAME: Final = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9._-]{0,54}\Z")
NAME: Final = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9._-]{0,62}\Z")
WORKER_ID: Final = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9._-]{0,127}\Z")
WORKER_ID_RULE: Final = "1 to 128 of a-z, A-Z, 0-9 and ._-, beginning with a letter or digit"
ADDRESS: Final = re.compile(r"[a-zA-Z0-9.:_%\[\]-]{0,300}\Z")
CALL_ID: Final = re.compile(r"[0-9]{1,15}\.[0-9]{1,15}\Z")
