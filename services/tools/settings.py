"""The settings of the tool service, from its environment."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from services.tools.sandbox.detection import LOWEST_UID
from services.tools.workspace.bounds import Bounds
from tenure.runtime.rpc.call_limiter import WorkerLimitSettings
from tenure.runtime.service import CommonSettings, metrics_setting
from tenure.runtime.settings import Address, Secret, group, setting
from tenure.runtime.store.postgres import dsn_problems


@dataclass(frozen=True, kw_only=True)
class ToolsSettings:
    """The settings TENURE_TOOLS_…"""

    listen: Address = setting("where to serve", default=Address("127.0.0.1:8473"))
    metrics_listen: Address | None = metrics_setting()
    postgres_dsn: Secret = setting("DSN of the database; the service uses the schema `tools`")
    verifying_keys_file: Path = setting("public keys of the coordinators' fencing tokens")
    config_file: Path | None = setting("YAML file of further tools, see docs/tools.md", default=None)
    migrate: str = setting(
        "check: refuse to start when migrations are missing; auto: run them", default="check", choices=("check", "auto")
    )
    service_role: str = setting("database role that the command migrate gives the rights of the service", default="")
    allow_unsafe_postgres: bool = setting("accept a Postgres that may lose acknowledged commits", default=False)
    workspace_root: Path = setting("directory of the tasks' workspaces, shared by all replicas")
    records_dir: Path | None = setting(
        "directory in which append_record writes, a tool for demonstrations; without it the tool does not exist",
        default=None,
    )
    search_url: str = setting(
        "JSON endpoint of web_search, where the config file has no section for it; without both its calls fail",
        default="",
    )
    max_running: int = setting(
        "calls that run at once, besides programs and searches", default=64, minimum=1, maximum=1024
    )
    max_accepted: int = setting(
        "calls that run or wait to run; a tenant may have as many as are left free", default=4096, minimum=1
    )
    runner_ttl_seconds: float = setting("how long this runner counts as alive after a renewal", default=5.0)
    runner_margin_seconds: float = setting(
        "how long before the end of that time the runner stops its calls", default=1.0, minimum=0.1
    )
    runner_renew_interval_seconds: float = setting("how often the runner renews", default=1.0, minimum=0.1)
    machine_id: str = setting(
        "unique name of this machine; without it a new boot proves nothing about runners of the previous boot",
        default="",
    )
    close_wait_seconds: float = setting(
        "how long the close of a fence waits for the calls that it stops", default=3.0, minimum=0.1
    )
    drain_seconds: float = setting("how long calls may run on after the process is asked to stop", default=10.0)
    sandbox_slots: int = setting("agents' programs that run at once", default=8, minimum=1, maximum=1024)
    sandbox_warm: int = setting(
        "warm sandboxes, started before their programs are known", default=2, minimum=0, maximum=64
    )
    sandbox_first_uid: int = setting(
        "first uid of the sandboxes, when the service runs as root", default=61_000, minimum=LOWEST_UID
    )
    sandbox_bubblewrap: Path | None = setting("path of bubblewrap, when it is not on PATH", default=None)
    sandbox_require_cgroup: bool = setting(
        "refuse to run programs on a machine without usable cgroups, which limit a program as a whole", default=False
    )
    workspace_bytes: int = setting("the most bytes of a workspace", default=512 * 1024 * 1024, minimum=1)
    workspace_files: int = setting("the most files, directories and links of a workspace", default=20_000, minimum=1)
    workspace_sweep_interval_seconds: float = setting(
        "how often the service looks for workspaces of pruned tasks", default=60.0, minimum=0.1, maximum=86_400.0
    )
    python_wall_seconds: float = setting("the longest run time of an agent's program", default=10.0, minimum=0.1)
    limit: WorkerLimitSettings = group(WorkerLimitSettings, "TENURE_TOOLS_LIMIT_")
    common: CommonSettings = group(CommonSettings)

    @property
    def workspace_bounds(self) -> Bounds:
        """The limits of a workspace."""
        return Bounds(self.workspace_bytes, self.workspace_files)

    def problems(self) -> Iterator[str]:
        """Yields violated relations between settings."""
        longest = self.runner_ttl_seconds - self.runner_margin_seconds
        if 2 * self.runner_renew_interval_seconds > longest:
            yield (
                "TENURE_TOOLS_RUNNER_RENEW_INTERVAL_SECONDS must allow for one lost renewal: it may be at most half of "
                f"{longest:g} s (TTL minus margin)"
            )
        yield from dsn_problems(self.common, "TENURE_TOOLS_POSTGRES_DSN", self.postgres_dsn)
