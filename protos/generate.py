"""Generates tenure/v1 from protos/tenure/v1: `python protos/generate.py [OUTPUT_ROOT]`.

A test generates into an empty directory and compares, so that the committed code is always fresh.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
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
    for path in [*output_root.rglob("*_pb2_grpc.py"), *output_root.rglob("*_pb2_grpc.pyi")]:
        path.write_text(_without_unused(path.read_text(), keep_docs_of="Stub" if path.suffix == ".pyi" else None))


def _without_unused(source: str, *, keep_docs_of: str | None) -> str:
    """Removes grpcio's experimental API and the repeated comments, which are more than half of this code.

    Each program imports it, and each installation has it. The type hints of the stubs keep the comments.
    """
    lines = source.split("\n")
    removed: list[tuple[int, int, str]] = []  # from this line to that one, and what stands there instead
    for node in ast.parse(source).body:
        if not isinstance(node, ast.ClassDef):
            continue
        if not node.name.endswith(("Stub", "Servicer")):
            removed.append((node.lineno - 2, node.end_lineno or 0, ""))  # with the comment above it
        elif keep_docs_of is None or not node.name.removesuffix(keep_docs_of).endswith("Service"):
            removed.extend(_docs(node))
    for first, end, instead in sorted(removed, reverse=True):
        lines[first:end] = [instead] if instead else []
    return "\n".join(lines).rstrip() + "\n"


def _docs(node: ast.ClassDef | ast.FunctionDef) -> Iterator[tuple[int, int, str]]:
    for part in node.body:
        if isinstance(part, ast.FunctionDef):
            yield from _docs(part)
        elif isinstance(part, ast.Expr) and isinstance(part.value, ast.Constant) and isinstance(part.value.value, str):
            instead = "" if len(node.body) > 1 else " " * part.col_offset + "..."
            yield part.lineno - 1, part.end_lineno or 0, instead


if __name__ == "__main__":
    generate(Path(sys.argv[1]) if len(sys.argv) > 1 else PROTOS.parent)
