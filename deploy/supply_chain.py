"""The supply chain: `python -m deploy.supply_chain lock|audit|sbom`."""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any, Final

from cyclonedx.model import ExternalReference, ExternalReferenceType, HashAlgorithm, HashType, XsUri
from cyclonedx.model.bom import Bom, BomMetaData
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL
from packaging.requirements import Requirement

from deploy.install import releases

ROOT: Final = Path(__file__).parents[1]
IMAGE_LOCK: Final = "deploy/requirements.lock"
LOCKS: Final = {IMAGE_LOCK: "server", "deploy/requirements-dev.lock": "dev", "deploy/requirements-check.lock": "check"}
"""The locks with their extras. Each holds what those before it lack, and each extra contains those before it."""
AUDIT_SECONDS: Final = 10
"""The longest time for the vulnerability service; without an answer the audit is skipped."""


def lock(*, upgrade: bool) -> None:
    """Writes the locks for Python 3.11 to 3.13 and all platforms. Needs PyPI.

    The last extra is resolved first, and the others get its releases: the image has those that are tested.
    """
    locked = "" if upgrade else "\n".join((ROOT / name).read_text() for name in LOCKS)
    everything = _resolved(list(LOCKS.values())[-1], locked)
    written: set[str] = set()
    for name, extra in LOCKS.items():
        added = [each for each in releases(_resolved(extra, everything)) if each.split("\n")[0] not in written]
        (ROOT / name).write_text("\n".join(["# Written by `make lock`.", *added, ""]))
        written |= {each.split("\n")[0] for each in added}


def _resolved(extra: str, preferred: str) -> str:
    """Returns the lock of an extra, with the preferred releases where they fit."""
    with tempfile.NamedTemporaryFile("w", suffix=".lock") as file:
        file.write(preferred)
        file.flush()
        arguments = [
            *("pip", "compile", "pyproject.toml", "deploy/build-requirements.in", "--extra", extra, "--quiet"),
            *("--universal", "--python-version", "3.11", "--generate-hashes", "--output-file", file.name),
        ]
        subprocess.run(
            [Path(sys.executable).parent / "uv", *arguments], cwd=ROOT, check=True, stdout=subprocess.DEVNULL
        )
        return Path(file.name).read_text()


def audit(seconds: float = AUDIT_SECONDS) -> int:
    """Returns 1 if a locked release of the image has a known vulnerability, and 0 if not or without an answer."""
    arguments = [
        "--requirement",
        IMAGE_LOCK,
        "--disable-pip",
        "--no-deps",
        "--progress-spinner=off",
        "--format=json",
    ]
    command = [sys.executable, "-m", "pip_audit", *arguments, "--timeout", str(int(seconds))]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired:
        print(f"audit: skipped, because the vulnerability service gave no answer in {seconds} s")
        return 0
    if not done.stdout.startswith("{"):
        reason = (done.stderr.strip().splitlines() or ["no output"])[-1]
        print(f"audit: skipped, because the vulnerability service cannot be reached: {reason}")
        return 0
    return verdict(json.loads(done.stdout)["dependencies"])


def verdict(packages: list[dict[str, Any]]) -> int:
    """Prints the holes and the packages without an answer, and returns 1 if there is a hole."""
    unanswered = [package for package in packages if "skip_reason" in package]
    holes = [(package, hole) for package in packages for hole in package.get("vulns", ())]
    for package, hole in holes:
        fixes = ", ".join(hole["fix_versions"]) or "none"
        print(f"audit: {package['name']} {package['version']} has {hole['id']}; fixed in: {fixes}")
    if unanswered:
        reason = unanswered[0]["skip_reason"]
        print(f"audit: no answer about {len(unanswered)} of {len(packages)} packages, the first because: {reason}")
    elif not holes:
        print(f"audit: no known vulnerability in {len(packages)} packages")
    return 1 if holes else 0


def sbom(path: Path) -> None:
    """Writes the packages of the image as CycloneDX JSON: Tenure, and each locked release with its hashes."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    tenure = Component(name=project["name"], version=project["version"], type=ComponentType.APPLICATION)
    components = [_component(lines) for lines in releases((ROOT / IMAGE_LOCK).read_text())]
    bom = Bom(components=components, metadata=BomMetaData(component=tenure))
    bom.register_dependency(tenure, components)
    path.parent.mkdir(parents=True, exist_ok=True)
    JsonV1Dot6(bom).output_to_file(str(path), allow_overwrite=True, indent=2)


def _component(release: str) -> Component:
    requirement = Requirement(release.splitlines()[0].rstrip(" \\"))
    version = next(iter(requirement.specifier)).version
    hashes = [
        HashType(alg=HashAlgorithm.SHA_256, content=each) for each in re.findall(r"sha256:([0-9a-f]{64})", release)
    ]
    index = ExternalReference(
        type=ExternalReferenceType.DISTRIBUTION,
        url=XsUri(f"https://pypi.org/simple/{requirement.name}/"),
        hashes=hashes,
    )
    return Component(
        name=requirement.name,
        version=version,
        purl=PackageURL("pypi", None, requirement.name, version),
        bom_ref=f"{requirement.name}=={version}",
        external_references=[index],
    )


def main() -> int:
    """Runs the command of the arguments and returns its exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("lock").add_argument("--upgrade", action="store_true", help="take newer releases")
    commands.add_parser("audit")
    commands.add_parser("sbom").add_argument("path", type=Path)
    chosen = parser.parse_args()
    if chosen.command == "audit":
        return audit()
    if chosen.command == "sbom":
        sbom(chosen.path)
        return 0
    try:
        lock(upgrade=chosen.upgrade)
    except subprocess.CalledProcessError as failure:
        return failure.returncode  # uv has said why
    return 0


if __name__ == "__main__":
    sys.exit(main())
