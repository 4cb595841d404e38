"""What holds of the console's files: text is never read as HTML, no other host is asked, and nothing is missing."""

from __future__ import annotations

import re
from hashlib import sha256
from pathlib import Path
from typing import Final

CONSOLE: Final = Path(__file__).parents[3] / "edges" / "console" / "files"
VENDOR: Final = CONSOLE / "vendor"
HTML_FROM_TEXT: Final = re.compile(
    r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|setHTML|DOMParser|createContextualFragment|srcdoc"
    r"|\beval\(|new Function\(|setTimeout\(\s*[\"'`]"
)
IMPORT: Final = re.compile(r"""(?:\bfrom|\bimport\(?)\s*["'](\.[^"']+)["']""")


def modules() -> list[Path]:
    found = [path for path in sorted(CONSOLE.rglob("*.js")) if VENDOR not in path.parents]
    assert len(found) > 10
    return found


def test_no_text_becomes_html() -> None:
    guilty = {str(path.relative_to(CONSOLE)) for path in modules() if HTML_FROM_TEXT.search(path.read_text())}
    assert guilty == set(), "make elements with h() of dom.js: texts of tasks are hostile"


def test_no_other_host_is_named() -> None:
    files = [*modules(), CONSOLE / "index.html", CONSOLE / "console.css"]
    assert [str(path) for path in files if re.search(r"https?://", path.read_text())] == []
    assert not re.search(r"@import|url\(", (CONSOLE / "console.css").read_text())


def test_every_named_file_exists() -> None:
    missing = [
        f"{path.relative_to(CONSOLE)}: {name}"
        for path in modules()
        for name in IMPORT.findall(path.read_text())
        if not (path.parent / name).is_file()
    ]
    page = (CONSOLE / "index.html").read_text()
    missing += [name for name in re.findall(r'(?:href|src)="([^"#]+)"', page) if not (CONSOLE / name).is_file()]
    pages = re.findall(r'"\./pages/[\w.]+"', (CONSOLE / "app.js").read_text())
    assert len(pages) > 5
    missing += [name for name in pages if not (CONSOLE / name.strip('"')).is_file()]
    assert missing == []


def test_vendored_files_are_unchanged() -> None:
    """vendor/README.md names the release of each file, and its hash."""
    named = dict(re.findall(r"\| `([^`]+)` \|.*\| `([0-9a-f]{64})` \|", (VENDOR / "README.md").read_text()))
    files = {str(path.relative_to(VENDOR)): path for path in VENDOR.rglob("*") if path.is_file()}
    assert set(named) == set(files) - {"README.md"}
    assert {name: sha256(files[name].read_bytes()).hexdigest() for name in named} == named
