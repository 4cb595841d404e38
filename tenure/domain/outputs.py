"""Defines a task's outputs: references to what its work produced downstream, and their check at the close-out.

An agent states an output with the tool `record_output`. A file of the workspace is read by the tool service, which
computes its digest and size; other URIs are recorded as the agent states them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from tenure.domain.tools import Outcome

RECORD_OUTPUT: Final = "record_output"
MAX_OUTPUTS: Final = 32
"""The most calls of record_output of one task, failed ones included."""
MAX_URI_BYTES: Final = 1000
"""In UTF-8: the ledger has an index on URIs, and an index row of Postgres holds 2,704 bytes."""
MAX_DESCRIPTION_CHARACTERS: Final = 200
MAX_SIZE_BYTES: Final = 2**53
WORKSPACE_SCHEME: Final = "workspace:"
"""The beginning of the URI of a file of the task's workspace; its path follows."""

KIND_PATTERN: Final = "^[a-zA-Z0-9][a-zA-Z0-9._-]{0,62}$"
URI_PATTERN: Final = "^[a-zA-Z][a-zA-Z0-9+.-]{0,62}:[^\\x00-\\x20\\x7f]+$"
DIGEST_PATTERN: Final = "^[a-z0-9-]{1,16}:[0-9a-f]{8,128}$"
_KIND: Final = re.compile(KIND_PATTERN.removesuffix("$") + r"\Z")
_URI: Final = re.compile(URI_PATTERN.removesuffix("$") + r"\Z")
_FILE_URI: Final = re.compile(re.escape(WORKSPACE_SCHEME) + r"[^\x00-\x1f\x7f]+\Z")
_DIGEST: Final = re.compile(DIGEST_PATTERN.removesuffix("$") + r"\Z")


class OutputState(StrEnum):
    """The result of checking an output. STATED: nothing was checked. The others are of files of the workspace."""

    STATED = "STATED"
    RECORDED = "RECORDED"
    VERIFIED = "VERIFIED"
    CHANGED = "CHANGED"
    MISSING = "MISSING"


@dataclass(frozen=True, slots=True)
class TaskOutput:
    """A reference to a downstream output. `digest` "" and `size_bytes` None: unknown. `call_id`: the call that recorded
    it; "" until the call has its outcome.
    """

    kind: str
    uri: str
    state: OutputState
    digest: str = ""
    size_bytes: int | None = None
    description: str = ""
    call_id: str = ""

    @property
    def path(self) -> str:
        """The path of a file of the workspace; "" for another URI."""
        return self.uri.removeprefix(WORKSPACE_SCHEME) if self.uri.startswith(WORKSPACE_SCHEME) else ""


@dataclass(frozen=True, slots=True)
class FileDigest:
    """The content of a file of the workspace, as the tool service read it."""

    digest: str
    size_bytes: int


def utf8_bytes(text: str) -> int:
    """Returns the length in UTF-8; half of a surrogate pair, which `problem_of_output` refuses, counts as three."""
    return len(text.encode(errors="surrogatepass"))


def problem_of_output(output: TaskOutput) -> str:
    """Returns why an output cannot be recorded, as text that follows its name; "" for none."""
    if _KIND.match(output.kind) is None:
        return "its kind must be a name of up to 63 characters: letters, digits, dots, - and _"
    pattern = _FILE_URI if output.path else _URI
    if utf8_bytes(output.uri) > MAX_URI_BYTES or pattern.match(output.uri) is None:
        return f"its uri must be a URI of at most {MAX_URI_BYTES:,} bytes in UTF-8, without spaces"
    if bool(output.path) == (output.state is OutputState.STATED):
        return "only files of the workspace are checked, and all of them are"
    if output.digest and _DIGEST.match(output.digest) is None:
        return "its digest must be ALGORITHM:HEX, for example sha256:…"
    if output.size_bytes is not None and not 0 <= output.size_bytes <= MAX_SIZE_BYTES:
        return f"its size must be 0 to {MAX_SIZE_BYTES} bytes"
    if len(output.description) > MAX_DESCRIPTION_CHARACTERS or "\0" in output.description:
        return f"its description must have at most {MAX_DESCRIPTION_CHARACTERS} characters"
    try:
        f"{output.uri}{output.description}".encode()
    except UnicodeEncodeError:
        return "its path, uri and description must consist of whole characters, without half of a surrogate pair"
    return ""


def output_of(call_id: str, outcome: Outcome) -> TaskOutput | None:
    """Returns the output that a call recorded, with its call id, or None."""
    return None if outcome.output is None or outcome.is_error else replace(outcome.output, call_id=call_id)


def check_outputs(outputs: Iterable[TaskOutput], files: Mapping[str, FileDigest]) -> tuple[TaskOutput, ...]:
    """Returns the outputs as they are at the close-out. `files`: the digests of the files that exist, by path.

    A changed file has its new digest. A missing one keeps the digest of what was recorded.
    """
    return tuple(_checked(output, files.get(output.path)) if output.path else output for output in outputs)


def _checked(output: TaskOutput, file: FileDigest | None) -> TaskOutput:
    if file is None:
        return replace(output, state=OutputState.MISSING)
    same = (output.digest, output.size_bytes) == (file.digest, file.size_bytes)
    state = OutputState.VERIFIED if same else OutputState.CHANGED
    return replace(output, state=state, digest=file.digest, size_bytes=file.size_bytes)
