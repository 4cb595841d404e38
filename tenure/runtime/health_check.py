"""Asks a service of this machine for its health, for probes that run a command: `tenure serve gateway health`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tenure.runtime.certificate_files import CertificateFiles, PeerTls
from tenure.runtime.tls import MutualTlsSettings

if TYPE_CHECKING:
    from tenure.domain.access import Role
    from tenure.runtime.settings import Address

ANSWER_SECONDS: Final = 5.0
_EVERY_INTERFACE: Final = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}  # noqa: S104  compared, never bound to


async def health_problem(listen: Address, role: Role, tls: MutualTlsSettings) -> str:
    """Returns why the service that listens there does not serve; "" if it serves. Presents the service's certificate.

    Raises ConfigurationError for certificate files that cannot be used.
    """
    host = _EVERY_INTERFACE.get(listen.host)
    address = str(listen) if host is None else f"{host}:{listen.port}"
    async with _channel(address, role, tls) as channel:
        try:
            answer = await health_pb2_grpc.HealthStub(channel).Check(
                health_pb2.HealthCheckRequest(), timeout=ANSWER_SECONDS
            )
        except grpc.aio.AioRpcError as error:
            return f"{address} does not answer: {error.details()}"
    serving = answer.status == health_pb2.HealthCheckResponse.SERVING
    return "" if serving else f"{address} is NOT_SERVING; the service's log says why"


def _channel(address: str, role: Role, tls: MutualTlsSettings) -> grpc.aio.Channel:
    options: list[tuple[str, str | int]] = [("grpc.enable_http_proxy", 0)]
    if tls.certificate_file is None:
        return grpc.aio.insecure_channel(address, options=options)
    peer = PeerTls(CertificateFiles(tls), role)
    return grpc.aio.secure_channel(
        address, grpc.ssl_channel_credentials(*peer.read()), options=[*options, *peer.options()]
    )
