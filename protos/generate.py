"""Generates tenure/v1 from protos/tenure/v1: `python protos/generate.py [OUTPUT_ROOT]`.

A test generates into an empty directory and compares, so that the committed code is always fresh.
"""

from __future__ import annotations

import sys
from pathlib import Path

import grpc_tools
from grpc_tools import protoc

PROTOS = Path(__file__).resolve().parent
SCRIPTS = Path(sys.executable).parent  # of this environment, whatever PATH says
WELL_KNOWN = Path(grpc_tools.__file__).parent / "_proto"


def generate(output_root: Path) -> None:
    """Writes messages, stubs and their type hints below `output_root`; raises SystemExit with protoc's code."""
    output_root.mkdir(parents=True, exist_ok=True)
    sources = sorted(str(path.relative_to(PROTOS)) for path in PROTOS.rglob("*.proto"))
    out = str(output_root)
    code = protoc.main(
        [
            "protoc",
            f"--proto_path={PROTOS}",
            f"--proto_path={WELL_KNOWN}",
            f"--plugin=protoc-gen-mypy={SCRIPTS / 'protoc-gen-mypy'}",
            f"--plugin=protoc-gen-mypy_grpc={SCRIPTS / 'protoc-gen-mypy_grpc'}",
            f"--python_out={out}",
            f"--mypy_out=readable_stubs,quiet:{out}",
            f"--grpc_python_out={out}",
            f"--mypy_grpc_out=quiet:{out}",
            *sources,
        ]
    )
    if code != 0:
        raise SystemExit(code)


if __name__ == "__main__":
    generate(Path(sys.argv[1]) if len(sys.argv) > 1 else PROTOS.parent)
