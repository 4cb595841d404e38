"""Where the stack keeps its files."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from pathlib import Path

from tenure.runtime.signing import write_key_pair


@dataclass(frozen=True, slots=True)
class Layout:
    """Everything under one folder, which a second start finds again."""

    data_dir: Path

    @property
    def etcd(self) -> Path:
        return self.data_dir / "etcd"

    @property
    def postgres(self) -> Path:
        return self.data_dir / "postgres"

    @property
    def logs(self) -> Path:
        return self.data_dir / "logs"

    @property
    def workspaces(self) -> Path:
        return self.data_dir / "workspaces"

    @property
    def records(self) -> Path:
        """Where append_record writes: the outside, as far as Tenure is concerned."""
        return self.data_dir / "records"

    @property
    def model_log(self) -> Path:
        """What the simulator billed, one JSON object a line."""
        return self.data_dir / "model-calls.jsonl"

    @property
    def signing_key(self) -> Path:
        return self.data_dir / "keys" / "signing.json"

    @property
    def verifying_keys(self) -> Path:
        return self.data_dir / "keys" / "verifying.json"

    def prepare(self) -> None:
        """Makes the folders, and the key of the first start."""
        for folder in (self.data_dir, self.logs, self.workspaces, self.records, self.signing_key.parent):
            folder.mkdir(parents=True, exist_ok=True)
        self.signing_key.parent.chmod(0o700)
        if not self.signing_key.exists():
            write_key_pair(self.signing_key, self.verifying_keys, key_id=uuid.uuid4().hex[:8])
