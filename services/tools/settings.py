"""What the tool service is told by its environment."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from services.tools.workspace.bounds import Bounds
from tenure.runtime.service import CommonSettings
from tenure.runtime.settings import Address, Secret, group, setting

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True, kw_only=True)
class ToolsSettings:
    """TENURE_TOOLS_…"""

    listen: Address = setting("where to serve", default=Address("127.0.0.1:8473"))
    postgres_dsn: Secret = setting("DSN of the database; the service keeps to the schema `tools`")
    verifying_keys_file: Path = setting("public keys of the coordinators' fencing tokens")
    config_file: Path | None = setting("YAML file of further tools, see docs/tools.md; without it none", default=None)
    migrate: str = setting("what to do when the database is behind", default="check", choices=("check", "auto"))
    allow_unsafe_postgres: bool = setting("accept a Postgres that may lose what it acknowledged", default=False)
    workspace_root: Path = setting("directory of the tasks' files, shared by all replicas")
    records_dir: Path | None = setting("where append_record writes; without it the tool is not set up", default=None)
    search_url: str = setting("JSON endpoint of web_search; without it the tool is not set up", default="")
    max_running: int = setting("effects at once, besides programs and searches", default=64, minimum=1, maximum=1024)
    max_accepted: int = setting("calls running or waiting for a place", default=4096, minimum=1)
    runner_ttl_seconds: float = setting("how long without renewal until this runner counts as dead", default=5.0)
    runner_margin_seconds: float = setting("how much earlier it stops by itself", default=1.0, minimum=0.1)
    runner_renew_interval_seconds: float = setting("how often it renews", default=1.0, minimum=0.1)
    machine_id: str = setting(
        "what tells this machine from all others; without it a new boot proves nothing of the one before", default=""
    )
    close_wait_seconds: float = setting("how long closing a fence waits for what it stops", default=3.0, minimum=0.1)
    drain_seconds: float = setting("how long calls may run on when the process is told to stop", default=10.0)
    sandbox_slots: int = setting("agents' programs at once", default=8, minimum=1, maximum=1024)
    sandbox_warm: int = setting(
        "sandboxes started ahead of the programs that will run in them", default=2, minimum=0, maximum=64
    )
    sandbox_first_uid: int = setting("first uid of the sandboxes, when the service is root", default=61_000)
    sandbox_bubblewrap: Path | None = setting("bubblewrap's path, when it is not on PATH", default=None)
    sandbox_require_cgroup: bool = setting("refuse a machine that cannot limit a program as a whole", default=False)
    workspace_bytes: int = setting("the most a task's files may take", default=512 * 1024 * 1024, minimum=1)
    workspace_files: int = setting("the most files, directories and links of a task", default=20_000, minimum=1)
    workspace_sweep_interval_seconds: float = setting(
        "how often directories of pruned tasks are looked for", default=60.0, minimum=0.1, maximum=86_400.0
    )
    python_wall_seconds: float = setting("the longest an agent's program may take", default=10.0, minimum=0.1)
    common: CommonSettings = group(CommonSettings)

    @property
    def workspace_bounds(self) -> Bounds:
        """What a workspace may hold."""
        return Bounds(self.workspace_bytes, self.workspace_files)

    def problems(self) -> Iterator[str]:
        """Relations between the settings."""
        longest = self.runner_ttl_seconds - self.runner_margin_seconds
        if 2 * self.runner_renew_interval_seconds > longest:
            yield (
                "TENURE_TOOLS_RUNNER_RENEW_INTERVAL_SECONDS must leave room for a lost renewal: twice of it in "
                f"{longest:g} s (TTL less margin)"
            )
