"""The locks fit pyproject.toml, and the image and the bill of materials are made of them."""

from __future__ import annotations

import json
import re
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from deploy import install
from deploy.supply_chain import IMAGE_LOCK, LOCKS, ROOT, audit, sbom, verdict

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PYTHONS = ("3.11", "3.12", "3.13")


def requirements_of(extras: set[str]) -> list[Requirement]:
    """The direct requirements with those of the extras, and of the extras that these name."""
    texts = [*PROJECT["project"]["dependencies"], *PROJECT["build-system"]["requires"]]
    for extra in extras:
        texts += PROJECT["project"]["optional-dependencies"][extra]
    requirements = [Requirement(text) for text in texts]
    named = {extra for each in requirements if each.name == "tenure" for extra in each.extras}
    return (
        requirements_of(extras | named) if named - extras else [each for each in requirements if each.name != "tenure"]
    )


def locked(name: str) -> list[Requirement]:
    lines = (ROOT / name).read_text().splitlines()
    return [Requirement(line.rstrip(" \\")) for line in lines if re.match(r"[a-zA-Z0-9]", line)]


def locked_up_to(name: str) -> list[Requirement]:
    """The releases of a lock and of those before it."""
    names = list(LOCKS)
    return [each for lock in names[: names.index(name) + 1] for each in locked(lock)]


def environment(python: str) -> dict[str, str]:
    return {"python_version": python, "python_full_version": f"{python}.0", "sys_platform": "linux"}


@pytest.mark.parametrize("python", PYTHONS)
@pytest.mark.parametrize("name", LOCKS)
def test_the_lock_holds_a_fitting_release_of_each_requirement(name: str, python: str) -> None:
    releases = {
        canonicalize_name(each.name): next(iter(each.specifier)).version
        for each in locked_up_to(name)
        if each.marker is None or each.marker.evaluate(environment(python))
    }
    for requirement in requirements_of({LOCKS[name]}):
        if requirement.marker is not None and not requirement.marker.evaluate(environment(python)):
            continue  # not for this machine
        assert requirement.specifier.contains(releases[canonicalize_name(requirement.name)]), (
            f"{requirement}: make lock"
        )


@pytest.mark.parametrize("name", LOCKS)
def test_each_locked_release_is_exact_and_has_hashes(name: str) -> None:
    text = (ROOT / name).read_text()
    assert all(re.fullmatch(r"==[^*]+", str(each.specifier)) for each in locked(name))
    blocks = re.split(r"\n(?=[a-zA-Z0-9])", text)
    assert all("--hash=sha256:" in block for block in blocks if re.match(r"[a-zA-Z0-9]", block))


@pytest.mark.parametrize("name", LOCKS)
def test_the_lock_has_no_direct_requirement_of_the_past(name: str) -> None:
    direct = set(
        re.findall(r"^([\w.-]+)==[^#]*?# via tenure \(pyproject\.toml\)$", (ROOT / name).read_text(), re.MULTILINE)
    )
    names = {canonicalize_name(each.name) for each in requirements_of({LOCKS[name]})}
    assert {canonicalize_name(each) for each in direct} <= names


@pytest.mark.parametrize("python", PYTHONS)
def test_a_package_has_one_release_in_all_locks(python: str) -> None:
    """The image has the releases that are tested, and `make setup` after `make demo` replaces nothing."""
    names = [
        canonicalize_name(each.name)
        for each in locked_up_to(list(LOCKS)[-1])
        if each.marker is None or each.marker.evaluate(environment(python))
    ]
    assert len(names) == len(set(names))


def test_the_installed_sets_are_the_locks() -> None:
    run, develop = install.SETS["run"][0], install.SETS["develop"][0]
    assert [*run, *develop] == list(LOCKS)
    assert LOCKS[run[-1]] == "dev"


def test_an_uninstallable_uv_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then pip installs the set."""
    monkeypatch.setattr(install, "VENV", tmp_path)
    monkeypatch.setattr(install, "PYTHON", sys.executable)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    reason = install.install_uv(f"uv==0.0.0 \\\n    --hash=sha256:{'0' * 64}\n")
    assert reason == "ERROR: No matching distribution found for uv==0.0.0"


def test_the_build_requirements_are_those_of_the_project() -> None:
    lines = (ROOT / "deploy/build-requirements.in").read_text().splitlines()
    assert [line for line in lines if not line.startswith("#")] == PROJECT["build-system"]["requires"]


def test_the_image_installs_locked_releases_only() -> None:
    installs = re.findall(r"pip install (.+)$", (ROOT / "deploy/Dockerfile").read_text(), re.MULTILINE)
    assert len(installs) == 2
    assert f"--require-hashes -r {IMAGE_LOCK}" in installs[0]
    assert "--no-deps --no-build-isolation" in installs[1]


def test_the_image_has_the_sources_of_the_wheel() -> None:
    text = (ROOT / "deploy/Dockerfile").read_text()
    copied = {name for line in re.findall(r"^COPY (?!--)(.+) \S+$", text, re.MULTILINE) for name in line.split()}
    project = PROJECT["project"]
    folders = {path.partition("/")[0] for path in PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["only-include"]}
    assert folders | {"pyproject.toml", project["readme"], *project["license-files"]} <= copied


def test_the_bill_of_materials_lists_the_locked_releases(tmp_path: Path) -> None:
    sbom(tmp_path / "sbom.cdx.json")
    bill = json.loads((tmp_path / "sbom.cdx.json").read_text())
    assert bill["bomFormat"] == "CycloneDX"
    components = {(canonicalize_name(each["name"]), each["version"]) for each in bill["components"]}
    assert components >= {
        (canonicalize_name(each.name), next(iter(each.specifier)).version) for each in locked(IMAGE_LOCK)
    }


def test_the_development_environment_imports_jsonschema_quickly() -> None:
    """With rfc3987-syntax it takes seconds in each process that checks a schema, see jsonschema._format."""
    assert "rfc3987-syntax" not in {canonicalize_name(each.name) for name in LOCKS for each in locked(name)}


def test_an_audit_without_an_answer_in_time_passes(capsys: pytest.CaptureFixture[str]) -> None:
    assert audit(seconds=0.05) == 0
    assert "audit: skipped" in capsys.readouterr().out


def test_a_hole_fails_the_audit_and_a_missing_answer_does_not(capsys: pytest.CaptureFixture[str]) -> None:
    silent = {"name": "a", "skip_reason": "not on PyPI"}
    hole = {"name": "b", "version": "1.0", "vulns": [{"id": "CVE-1", "fix_versions": ["1.1"]}]}
    assert verdict([silent]) == 0
    assert "no answer about 1 of 1" in capsys.readouterr().out
    assert verdict([silent, hole]) == 1
    assert "b 1.0 has CVE-1; fixed in: 1.1" in capsys.readouterr().out
