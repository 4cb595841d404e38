"""Agents and functions in Python see what came with the submit, also after a kill of their worker."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from tenure import InputFile
from tenure.testing import Tenure, tool
from tests.support.images import png
from tests.support.sweeps import first
from tests.testing.parallel_agents import MODULES

pytestmark = pytest.mark.server
PHOTO = png(5, 7)


@pytest.mark.parametrize("agent", first(["pydantic", "openai"]))
def test_the_next_owner_shows_the_images_of_a_submit(tenure: Tenure, tmp_path: Path, agent: str) -> None:
    tenure.model.script([tool("slow", name="quick"), "I see {{images}}. {{goal}}"])
    killed = tenure.worker(functions=MODULES)
    files = [InputFile("photo.png", PHOTO), InputFile("facts.txt", b"true")]
    task = tenure.submit("Look.", agent=agent, input={"trace": str(tmp_path / "trace")}, files=files)
    killed.kill(at="after intent 2.0")
    tenure.worker(functions=MODULES)
    answer = task.result().value
    assert answer.startswith(f"I see image/png 5x7 sha256:{hashlib.sha256(PHOTO).hexdigest()}. Look."), task.story()
    assert "- facts.txt (4 bytes)" in answer


@pytest.mark.parametrize("agent", first(["openai", "pydantic"]))
def test_an_image_that_the_provider_refuses_is_left_out(tenure: Tenure, tmp_path: Path, agent: str) -> None:
    broken = png(4, 4, packed=b"no pixels")
    tenure.model.script([tool("slow", name="quick"), "I see {{images}}. {{goal}}"])
    tenure.worker(functions=MODULES)
    given = {"trace": str(tmp_path / "trace")}
    task = tenure.submit("Look.", agent=agent, input=given, files=[InputFile("photo.png", broken)])
    assert task.result().value.startswith("I see none. Look."), task.story()
    assert [entry.kind for entry in task.entries()].count("model_failure") == 1


def test_a_function_reads_the_files_of_its_submit(tenure: Tenure) -> None:
    tenure.worker(functions=MODULES)
    files = [InputFile("a/facts.txt", b"true"), InputFile("empty", b"")]
    assert tenure.submit_function("read_all", files=files).result().value == ["true", ""]
