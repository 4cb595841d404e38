"""The records of append_record: one effect for each key, read from where the last append ended."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

from services.tools.builtin.records import KnownKeys, record_tools


class Counting:
    """A file that counts the bytes that were read."""

    def __init__(self, path: Path) -> None:
        self._file, self.bytes = path.open("rb"), 0
        self.seek, self.fileno, self.close = self._file.seek, self._file.fileno, self._file.close

    def readline(self) -> bytes:
        line = self._file.readline()
        self.bytes += len(line)
        return line


def line(key: str, text: str = "x") -> bytes:
    return json.dumps({"key": key, "epoch": 7, "line": text}).encode() + b"\n"


def has(known: KnownKeys, path: Path, key: str) -> tuple[bool, int]:
    """Whether the key is known, and how many bytes were read for it."""
    file = Counting(path)
    try:
        return known.has(path, cast("Any", file), key), file.bytes
    finally:
        file.close()


def test_append_reads_only_new_records(tmp_path: Path) -> None:
    path, known = tmp_path / "a.jsonl", KnownKeys()
    path.write_bytes(b"".join(line(f"t/{number}.0", "y" * 1000) for number in range(100)))
    assert has(known, path, "t/99.0") == (True, path.stat().st_size)
    assert has(known, path, "t/100.0") == (False, 0)
    with path.open("ab") as other_replica:
        other_replica.write(line("t/100.0"))
    assert has(known, path, "t/100.0") == (True, len(line("t/100.0")))
    assert has(known, path, "t/7.0") == (True, 0)


def test_a_torn_line_counts_if_its_key_is_whole(tmp_path: Path) -> None:
    path, known = tmp_path / "a.jsonl", KnownKeys()
    path.write_bytes(line("t/1.0") + b'{"key": "t/2.1')
    assert not has(known, path, "t/2.1")[0]
    path.write_bytes(line("t/1.0") + b'{"key": "t/2.10", "epo')
    assert has(known, path, "t/2.10")[0]
    assert not has(known, path, "t/2.1")[0]


def test_a_file_that_was_cut_or_replaced_is_read_again(tmp_path: Path) -> None:
    path, known = tmp_path / "a.jsonl", KnownKeys()
    path.write_bytes(line("t/1.0") + line("t/2.0"))
    assert has(known, path, "t/2.0")[0]
    path.write_bytes(line("t/1.0"))
    assert not has(known, path, "t/2.0")[0]


def test_the_tools_exist_only_with_a_directory(tmp_path: Path) -> None:
    with ThreadPoolExecutor(1) as threads:
        assert record_tools(None, threads) == []
        assert len(record_tools(tmp_path, threads)) == 2
