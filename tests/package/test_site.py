"""The documentation as a site: every page, working links, and the references of Python and gRPC."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import tenure
from tests.package.installed import ROOT

pytestmark = [pytest.mark.timeout(600), pytest.mark.nightly]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site. `strict` in mkdocs.yml makes a broken link, anchor or reference an error."""
    folder = tmp_path_factory.mktemp("site")
    command = [str(Path(sys.executable).parent / "mkdocs"), "build", "--quiet", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_navigation_has_every_page(site: Path) -> None:
    shown = set(re.findall(r"\]\(([a-z_/]+)/\)", (site / "llms.txt").read_text()))
    assert {page.stem for page in (ROOT / "docs").glob("*.md")} <= shown
    assert all((site / page / "index.html").is_file() for page in shown)


def test_no_link_leaves_the_site_for_a_file(site: Path) -> None:
    broken = [
        (page.relative_to(site).as_posix(), target)
        for page in site.rglob("index.html")
        for target in re.findall(r'href="([^"#:]+\.(?:md|py|proto|mjs))"', page.read_text())
    ]
    assert broken == []


def test_every_block_of_code_is_rendered(site: Path) -> None:
    pages = [page for page in site.rglob("index.html") if re.search(r"^(<p>)?```\w", page.read_text(), re.MULTILINE)]
    assert [page.relative_to(site).as_posix() for page in pages] == []


def test_reference_has_every_public_name(site: Path) -> None:
    page = (site / "reference/python/index.html").read_text()
    ids = set(re.findall(r'id="tenure\.[\w.]*?(\w+)"', page))
    assert set(tenure.__all__) <= ids


def test_reference_has_every_rpc(site: Path) -> None:
    page = (site / "reference/grpc/index.html").read_text()
    rpcs = [
        (service, rpc)
        for proto in (ROOT / "protos/tenure/v1").glob("*.proto")
        for service, body in re.findall(r"^service (\w+) \{(.*?)^\}", proto.read_text(), re.MULTILINE | re.DOTALL)
        for rpc in re.findall(r"^  rpc (\w+)", body, re.MULTILINE)
    ]
    assert rpcs
    assert [rpc for rpc in rpcs if f'id="{"".join(rpc).lower()}"' not in page] == []
