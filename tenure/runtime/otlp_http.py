"""Sends telemetry by OTLP over HTTP. It blocks, so its callers run in threads.

`opentelemetry-exporter-otlp-proto-http` is not used: it brings `requests`, and does not say why a request failed.
"""

from __future__ import annotations

import gzip
import ssl
import time
from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING, Final

import httpx2

if TYPE_CHECKING:
    from tenure.runtime.otlp_target import HttpTarget

_MAX_ANSWER_BYTES: Final = 64 * 1024


@dataclass(frozen=True, slots=True)
class OtlpAnswer:
    """The answer of the collector: the HTTP status, and the beginning of the body."""

    status: int
    body: bytes

    @property
    def is_success(self) -> bool:
        """Whether it took the request."""
        return 200 <= self.status < 300


class OtlpHttp:
    """A client of one collector for one signal."""

    def __init__(self, target: HttpTarget, timeout_seconds: float) -> None:
        """Raises OSError (also ssl.SSLError) for a certificate that cannot be read."""
        self._target, self._timeout_seconds = target, timeout_seconds
        self._client = httpx2.Client(
            verify=_tls_context(target), trust_env=False, timeout=timeout_seconds, headers=_fixed_headers(target)
        )

    def post(self, body: bytes) -> OtlpAnswer:
        """Sends a request within a bounded time. Raises httpx2.HTTPError when no answer comes."""
        ends_at = time.monotonic() + self._timeout_seconds
        content = gzip.compress(body, compresslevel=6) if self._target.compresses else body
        with self._client.stream("POST", self._target.url, content=content) as response:
            received = b""
            for part in response.iter_raw():
                received += part
                if len(received) > _MAX_ANSWER_BYTES or time.monotonic() > ends_at:
                    break
            return OtlpAnswer(response.status_code, received[:_MAX_ANSWER_BYTES])

    def close(self) -> None:
        """Ends the connections."""
        self._client.close()


def _tls_context(target: HttpTarget) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=target.certificate or None)
    if target.client_certificate:
        context.load_cert_chain(target.client_certificate, target.client_key or None)
    return context


def _fixed_headers(target: HttpTarget) -> dict[str, str]:
    fixed = {
        "content-type": "application/x-protobuf",
        "accept-encoding": "identity",
        "user-agent": f"tenure/{version('tenure')}",
    }
    return {**target.headers, **fixed, **({"content-encoding": "gzip"} if target.compresses else {})}
