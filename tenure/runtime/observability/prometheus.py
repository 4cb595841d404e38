"""Serves the metrics of a process to Prometheus: the same numbers that are exported by OpenTelemetry.

    async with metrics_endpoint(settings.metrics_listen):
        …

The endpoint answers in threads of its own, so that it also answers while the event loop is busy. It is HTTP without TLS
and without authentication: it listens on the loopback interface, or, if TENURE_METRICS_ALLOW_NETWORK allows it, in a
network that only Prometheus and the services can enter.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, GCCollector, ProcessCollector, make_wsgi_app
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from tenure.runtime.listening import CannotListen
from tenure.runtime.observability.metric_catalogue import CATALOGUE, TOTAL
from tenure.runtime.observability.metrics import BUCKETS_SECONDS, REGISTRY, MetricRegistry

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence

    from prometheus_client.core import Metric

    from tenure.runtime.settings import Address

PATH: Final = "/metrics"
_MAX_REQUESTS: Final = 8
"""Requests that are answered at once; further connections are closed."""
_REQUEST_SECONDS: Final = 10.0
_log: Final = logging.getLogger(__name__)


class RegistryCollector(Collector):
    """Reads a registry when Prometheus asks. A histogram is one of Prometheus, with buckets, sum and count."""

    def __init__(self, registry: MetricRegistry = REGISTRY) -> None:
        self._registry = registry

    def collect(self) -> Iterator[Metric]:
        for name in self._registry.names():
            described = CATALOGUE.get(name)
            text = described.help if described else name
            yield self._histogram(name, text) if self._registry.is_histogram(name) else self._family(name, text)

    def _family(self, name: str, text: str) -> Metric:
        cells = self._registry.cells(name)
        kind = CounterMetricFamily if name.endswith(TOTAL) else GaugeMetricFamily
        names = _label_names([labels for labels, _ in cells])
        family: Metric = kind(name, text, labels=names)
        for labels, cell in cells:
            family.add_metric([labels.get(each, "") for each in names], cell.value)  # type: ignore[attr-defined]
        return family

    def _histogram(self, name: str, text: str) -> Metric:
        histograms = self._registry.histograms(name)
        names = _label_names([labels for labels, _ in histograms])
        family = HistogramMetricFamily(name, text, labels=names)
        for labels, histogram in histograms:
            counts, total = list(histogram.counts), histogram.total
            below, buckets = 0, []
            for bound, count in zip((*map(str, BUCKETS_SECONDS), "+Inf"), counts, strict=True):
                below += count
                buckets.append((bound, float(below)))
            family.add_metric([labels.get(each, "") for each in names], buckets, total)
        return family


def _label_names(label_sets: Sequence[dict[str, str]]) -> list[str]:
    return sorted({name for labels in label_sets for name in labels})


class _Handler(WSGIRequestHandler):
    timeout = _REQUEST_SECONDS

    def log_message(self, *_arguments: Any) -> None:
        """Logs no request: each scrape would be a line."""


class _Server(WSGIServer):
    """Answers at most _MAX_REQUESTS requests at once, each in a thread that does not delay the end of the process."""

    daemon_threads = True
    request_queue_size = 16

    def __init__(self, *arguments: Any, **named: Any) -> None:
        self._free = threading.BoundedSemaphore(_MAX_REQUESTS)
        super().__init__(*arguments, **named)

    def server_bind(self) -> None:
        """Binds without `getfqdn`, which may wait for a name server."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])
        self.setup_environ()

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._free.acquire(blocking=False):
            self.shutdown_request(request)
            return
        threading.Thread(target=self._answer, args=(request, client_address), daemon=True).start()

    def _answer(self, request: Any, client_address: Any) -> None:
        try:
            self.finish_request(request, client_address)
        except OSError as error:
            _log.debug("a request for metrics was broken off", extra={"error": error})
        finally:
            self.shutdown_request(request)
            self._free.release()


class _Server6(_Server):
    address_family = socket.AF_INET6


def collectors(registry: MetricRegistry = REGISTRY) -> CollectorRegistry:
    """Returns what the endpoint serves: the registry, and memory, processor time, files and garbage collection."""
    served = CollectorRegistry()
    served.register(RegistryCollector(registry))
    ProcessCollector(registry=served)
    GCCollector(registry=served)
    return served


@asynccontextmanager
async def metrics_endpoint(listen: Address, registry: MetricRegistry = REGISTRY) -> AsyncIterator[str]:
    """Serves inside the block and yields the bound `host:port`. Raises CannotListen."""
    kind = _Server6 if ":" in listen.host else _Server
    try:
        server = make_server(listen.host, listen.port, make_wsgi_app(collectors(registry)), kind, _Handler)
    except OSError as error:
        raise CannotListen(listen, error.strerror or str(error)) from error
    thread = threading.Thread(target=server.serve_forever, name="metrics", daemon=True)
    thread.start()
    address = f"{str(listen).rpartition(':')[0]}:{server.server_port}"
    _log.info("serving metrics", extra={"address": f"http://{address}{PATH}"})
    try:
        yield address
    finally:
        await asyncio.to_thread(server.shutdown)
        server.server_close()
