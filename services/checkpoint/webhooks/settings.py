"""How webhooks are sent. All of it may differ between replicas while they are replaced."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tenure.domain.addresses import Networks
from tenure.domain.retry import RetryPolicy
from tenure.domain.webhooks import RETRY
from tenure.runtime.settings import setting

if TYPE_CHECKING:
    from collections.abc import Iterator

PREFIX: Final = "TENURE_CHECKPOINT_WEBHOOK_"


@dataclass(frozen=True, kw_only=True)
class WebhookSettings:
    """TENURE_CHECKPOINT_WEBHOOK_…"""

    max_per_tenant: int = setting("most webhooks of one tenant", default=100, minimum=1)
    allowed_networks: tuple[str, ...] = setting("what they may reach that is not public, as 10.1.0.0/16", default=())
    request_timeout_seconds: float = setting("how long an endpoint may take", default=10.0, minimum=0.1, maximum=60)
    turn_seconds: float = setting("how long one replica is waited for", default=30.0, minimum=0.5, maximum=300)
    max_requests: int = setting("most requests to one endpoint at once", default=8, minimum=1, maximum=64)
    max_attempts: int = setting("how often a delivery is sent", default=RETRY.max_attempts, minimum=1, maximum=100)
    first_retry_seconds: float = setting("longest wait after one failure", default=RETRY.initial_seconds, minimum=0.01)
    longest_retry_seconds: float = setting("longest wait after many", default=RETRY.cap_seconds, minimum=0.01)
    max_pending: int = setting("most deliveries of one webhook that wait", default=10_000, minimum=1)
    max_dead: int = setting("dead letters at which a webhook is paused", default=10_000, minimum=1)

    @property
    def retry(self) -> RetryPolicy:
        """Between the attempts of one delivery."""
        return RetryPolicy(self.max_attempts, self.first_retry_seconds, RETRY.factor, self.longest_retry_seconds)

    def problems(self) -> Iterator[str]:
        """Relations between the settings."""
        if self.turn_seconds < 2 * self.request_timeout_seconds:
            yield f"{PREFIX}TURN_SECONDS must be at least twice {PREFIX}REQUEST_TIMEOUT_SECONDS"
        try:
            Networks(self.allowed_networks)
        except ValueError as error:
            yield f"{PREFIX}ALLOWED_NETWORKS: {error}"
