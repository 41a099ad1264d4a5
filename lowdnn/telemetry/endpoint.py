"""An HTTP endpoint for Prometheus, of one process or of several. Needs the extra ``prometheus``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from wsgiref.simple_server import WSGIServer

from lowdnn.checks import instance, integer
from lowdnn.telemetry.process_files import remove_dead
from lowdnn.telemetry.prometheus import QuietCollector, RegistryCollector, collecting
from lowdnn.telemetry.registry import Registry
from lowdnn.telemetry.samples import Family

# isort: split
from prometheus_client import start_http_server
from prometheus_client.metrics_core import Metric
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector


class Endpoint:
    """Serves the measures at ``http://host:port/metrics``, in Prometheus' text format or in OpenMetrics'.

    host: the address to listen at; the machine itself by default, ``0.0.0.0`` for others, too.
    port: 0 for any free one, which ``port`` has then.
    directory: serves the sums of all processes that write there (``ProcessFiles``), and not this process alone.
    """

    def __init__(self, port: int = 9400, host: str = "127.0.0.1", *, directory: Path | str | None = None) -> None:
        self.port = integer(port, "telemetry.Endpoint.port", 0, 65535)
        self.host = instance(host, str, "telemetry.Endpoint.host")
        self._directory = directory
        self._server: WSGIServer | None = None

    def open(self, registry: Registry) -> None:
        """Begins to serve, in threads of its own; raises OSError where the port is not free."""
        source: Collector = RegistryCollector(registry) if self._directory is None else _Summed(Path(self._directory))
        self._server, _ = start_http_server(self.port, self.host, collecting(source))
        self.port = self._server.server_port

    def export(self, families: Sequence[Family]) -> None:
        """Nothing: each request reads the measures."""

    def close(self) -> None:
        """Ends the serving."""
        server, self._server = self._server, None
        if server is not None:
            server.shutdown()
            server.server_close()

    def after_fork(self) -> None:
        """Lets go of the port, which the parent serves on."""
        server, self._server = self._server, None
        if server is not None:
            server.socket.close()


class _Summed(QuietCollector):
    """The sums of all processes that write into a directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def collect(self) -> Iterable[Metric]:
        remove_dead(self._directory)
        found: Iterable[Metric] = MultiProcessCollector(None, str(self._directory)).collect()
        return found
