"""The supply chain: `python -m deploy.supply_chain lock|audit|sbom`."""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any, Final

from cyclonedx.model import ExternalReference, ExternalReferenceType, HashAlgorithm, HashType, XsUri
from cyclonedx.model.bom import Bom, BomMetaData
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL
from packaging.requirements import Requirement

ROOT: Final = Path(__file__).parents[1]
LOCKS: Final = {
    "deploy/requirements.lock": ("--extra", "server"),
    "deploy/requirements-check.lock": ("--extra", "check"),
}
"""The locks of the image and of CI, with the arguments that choose their extras."""
AUDIT_SECONDS: Final = 10
"""The longest time for the vulnerability service; without an answer the audit is skipped."""


def lock(*, upgrade: bool) -> int:
    """Writes the locks for Python 3.11 to 3.13 and all platforms, and returns uv's exit code. Needs PyPI."""
    for name, extras in LOCKS.items():
        arguments = [
            *("pip", "compile", "pyproject.toml", "deploy/build-requirements.in", *extras, "--quiet"),
            *("--universal", "--python-version", "3.11", "--generate-hashes", "--output-file", name),
            *("--custom-compile-command", "make lock", *(["--upgrade"] if upgrade else [])),
        ]
        code = subprocess.run([Path(sys.executable).parent / "uv", *arguments], cwd=ROOT, check=False).returncode
        if code:
            return code
    return 0


def audit(seconds: float = AUDIT_SECONDS) -> int:
    """Returns 1 if a locked release of the image has a known vulnerability, and 0 if not or without an answer."""
    arguments = [
        "--requirement",
        "deploy/requirements.lock",
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
    return _verdict(json.loads(done.stdout)["dependencies"])


def _verdict(packages: list[dict[str, Any]]) -> int:
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
    releases = [_component(lines) for lines in _locked_releases()]
    bom = Bom(components=releases, metadata=BomMetaData(component=tenure))
    bom.register_dependency(tenure, releases)
    path.parent.mkdir(parents=True, exist_ok=True)
    JsonV1Dot6(bom).output_to_file(str(path), allow_overwrite=True, indent=2)


def _locked_releases() -> list[str]:
    """The blocks of the image's lock, each a release with its marker and hashes."""
    text = (ROOT / "deploy/requirements.lock").read_text()
    return [block for block in re.split(r"\n(?=\S)", text) if re.match(r"[a-zA-Z0-9]", block)]


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
    if chosen.command == "lock":
        return lock(upgrade=chosen.upgrade)
    if chosen.command == "audit":
        return audit()
    sbom(chosen.path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
