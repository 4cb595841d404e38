"""Hooks of mkdocs: add the pages that are elsewhere in the repository, the references and llms.txt, and mend links.

The Markdown files link to each other as files of the repository, so that they work there. On the site, a link to a
file with a page becomes a link to that page, and a link to any other file becomes the file's name.
"""

from __future__ import annotations

import os
import posixpath
import re
import sys
from pathlib import Path
from typing import Final

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

sys.path.insert(0, str(Path(__file__).parent))  # mkdocs loads this file by its path

from grpc_reference import grpc_reference
from llms import short_index, whole_text

ROOT: Final = Path(__file__).parents[2]
ELSEWHERE: Final = {
    "index.md": "README.md",
    "architecture.md": "ARCHITECTURE.md",
    "contributing.md": "CONTRIBUTING.md",
    "changelog.md": "CHANGELOG.md",
    "security_policy.md": "SECURITY.md",
    "examples.md": "examples/README.md",
    "spec.md": "spec/README.md",
    "fault_tests.md": "tests/fault/README.md",
}
"""Pages whose source is outside docs/: the page, and its file in the repository."""
PAGES_OF: Final = {source: page for page, source in ELSEWHERE.items()}
PYTHON: Final = {
    "reference/python.md": ("Python", "tenure", "from tenure import …"),
    "reference/control.md": ("Control functions", "tenure.control", "from tenure.control import …"),
}
"""The references of Python packages: the page, its title, the package, and the import."""
_LINK: Final = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
_FENCE: Final = re.compile(r"^( *```\w+) .*$", re.MULTILINE)
"""The beginning of a block of code whose second word is for a test: the site's renderer takes one word only."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages that are not files of docs/."""
    for page, source in ELSEWHERE.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text()))
    for page, (title, package, example) in PYTHON.items():
        files.append(File.generated(config, page, content=_python_reference(title, package, example)))
    files.append(File.generated(config, "reference/grpc.md", content=grpc_reference(ROOT / "protos")))
    files.append(File.generated(config, "llms.txt", content=short_index(config)))
    files.append(File.generated(config, "llms-full.txt", content=whole_text(config, ELSEWHERE, ROOT)))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Mends the links of a page that is a file of the repository."""
    del config
    own = page.file.src_uri
    if own.startswith("reference/"):
        return markdown
    source = ELSEWHERE.get(own, f"docs/{own}")

    def mend(link: re.Match[str]) -> str:
        image, text, target = link.groups()
        if "://" in target or target.startswith(("#", "mailto:")):
            return link.group()
        path, _, anchor = target.partition("#")
        in_repository = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
        there = PAGES_OF.get(in_repository, in_repository.removeprefix("docs/"))
        if files.get_file_from_path(there) is None or (there == in_repository and in_repository not in PAGES_OF):
            return text if text.startswith("`") else f"{text} (`{in_repository}`)"
        relative = posixpath.relpath(there, posixpath.dirname(own) or ".")
        return f"{image}[{text}]({relative}{'#' + anchor if anchor else ''})"

    return _FENCE.sub(r"\1", _LINK.sub(mend, markdown))


def _python_reference(title: str, package: str, example: str) -> str:
    """Returns a page with all public names of a package, from their docstrings."""
    module = __import__(package, fromlist=["__all__"])
    names = sorted(module.__all__, key=str.casefold)
    blocks = [f"::: {_home(module, name)}" for name in names]
    return "\n\n".join([f"# {title}", f"`{example}`", *blocks]) + "\n"


def _home(module: object, name: str) -> str:
    """Returns the path of a public name where it is defined, which griffe can read without imports."""
    value = getattr(module, name)
    home = getattr(value, "__module__", None)
    defined_as = getattr(value, "__qualname__", None)
    if isinstance(home, str) and isinstance(defined_as, str) and home.startswith("tenure"):
        return f"{home}.{defined_as}"
    return f"{getattr(module, '__name__', '')}.{name}"


os.chdir(ROOT)  # mkdocstrings resolves its paths against the working directory
