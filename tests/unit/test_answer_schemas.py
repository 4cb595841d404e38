"""Workers of agents are forked with built schemas of model answers, so that none builds them at its first answer."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

PROGRAM = """
import json
{imports}
from tenure.testing.answer_schemas import build_answer_schemas
before = is_built()
build_answer_schemas()
print(json.dumps([before, is_built()]))
"""
OF_ANTHROPIC = """
from anthropic.types.beta import BetaRawMessageStartEvent
def is_built():
    return BetaRawMessageStartEvent.__pydantic_complete__
"""
OF_OPENAI = """
from openai.types.responses import ResponseCompletedEvent
def is_built():
    return ResponseCompletedEvent.__pydantic_complete__
"""


@pytest.mark.parametrize(
    ("imports", "is_built"),
    [
        (f"import pydantic_ai\n{OF_ANTHROPIC}", True),
        (f"import agents\n{OF_OPENAI}", True),
        (OF_ANTHROPIC, False),
    ],
    ids=["pydantic_ai", "agents", "none"],
)
def test_schemas_are_built_for_workers_of_agents(imports: str, is_built: bool) -> None:
    command = [sys.executable, "-c", PROGRAM.format(imports=imports)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [False, is_built]
