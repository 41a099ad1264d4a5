"""``python -m tools.examples.service``: the service until SIGTERM or SIGINT."""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import lowdnn
from lowdnn import telemetry
from tools.examples.service.device import Device
from tools.examples.service.measures import Measures
from tools.examples.service.service import Service, Settings

if TYPE_CHECKING:
    from tools.examples.service.tracing import Traces


def main() -> int:
    """Runs the service; 0 after a signal, 1 where the device is lost."""
    arguments = _arguments()
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s %(message)s", level=logging.INFO)
    traces = None if arguments.traces is None else _traces(arguments.traces)
    # A batch is two launches, so all of them may be timed; a program with many launches draws a share.
    telemetry.enable(sample=1.0, spans=None if traces is None else traces.lowdnn.spans)
    measures = Measures()
    bundle = None if arguments.bundle is None else lowdnn.load_bundle(arguments.bundle, trust=True)
    device = Device(arguments.device, bundle, arguments.faults)
    settings = Settings(host=arguments.host, port=arguments.port, queue_limit=arguments.queue)
    try:
        return asyncio.run(_served(Service(device, settings, measures, traces)))
    finally:
        telemetry.disable()
        if traces is not None:
            traces.close()


def _traces(path: Path) -> Traces:
    from tools.examples.service.tracing import Traces  # needs OpenTelemetry's SDK

    return Traces(path)


async def _served(service: Service) -> int:
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    return await service.serve(stop, lambda port: print(f"listening on port {port}", flush=True))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tools.examples.service", description=__doc__)
    parser.add_argument("--host", default=Settings.host)
    parser.add_argument(
        "--port", type=int, default=Settings.port, help="0 takes a free one, which the first line names"
    )
    parser.add_argument("--device", choices=("cuda", "emulated", "auto"), help="default: LOWDNN_DEVICE, or auto")
    parser.add_argument("--bundle", metavar="FILE", help="plans and kernels; without it they are compiled at the start")
    parser.add_argument(
        "--faults",
        action="append",
        default=[],
        metavar="TEXT",
        help="calls of the driver that are to fail, such as launch:40=LAUNCH_FAILED; given again, for the next handle",
    )
    parser.add_argument("--queue", type=int, default=Settings.queue_limit, metavar="N", help="images that may wait")
    parser.add_argument(
        "--traces", type=Path, metavar="FILE", help="spans of requests, batches and executes, as JSON lines"
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
