"""Where the npm registry cannot be reached, tests of Node's packages are skipped with the reason; else they fail."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.node import install
from tests.support import fix_node

AWAY = "npm error code ENOTFOUND\nnpm error network request to https://registry/x failed, reason: getaddrinfo ENOTFOUND"
WRONG = "npm error code EINTEGRITY\nnpm error sha512-… integrity checksum failed"


def npm_that_says(folder: Path, words: str, code: int) -> str:
    npm = folder / "npm"
    (folder / "words").write_text(words)
    npm.write_text(f"#!/bin/sh\ncat {folder / 'words'} >&2\nexit {code}\n")
    npm.chmod(0o755)
    return str(npm)


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that the packages would be in."""
    folder = tmp_path / "node_modules"
    monkeypatch.setattr(install, "REASON", folder / ".unreachable")
    monkeypatch.setattr(install, "STAMP", folder / ".installed")
    return folder


def test_an_unreachable_registry_skips_with_its_reason(
    installed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert install.install(npm_that_says(tmp_path, AWAY, 1), or_skip=True) == 0
    assert "the npm registry cannot be reached (ENOTFOUND)" in capsys.readouterr().err
    with pytest.raises(pytest.skip.Exception, match=r"cannot be reached \(ENOTFOUND\).*`make node` installs them"):
        fix_node.packages(installed)


def test_who_asks_for_the_packages_hears_of_the_failure(installed: Path, tmp_path: Path) -> None:
    assert install.install(npm_that_says(tmp_path, AWAY, 1), or_skip=False) == 1
    with pytest.raises(pytest.fail.Exception, match="run `make node`"):
        fix_node.packages(installed)


def test_a_package_unlike_its_lock_file_fails(
    installed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert install.install(npm_that_says(tmp_path, WRONG, 1), or_skip=True) == 1
    assert "EINTEGRITY" in capsys.readouterr().err
    assert not install.REASON.exists()
