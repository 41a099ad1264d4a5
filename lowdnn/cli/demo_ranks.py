"""The ranks of ``lowdnn demo --devices``: one here, threads with an emulated device each, or processes with GPUs."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable

from lowdnn.backend import Handle
from lowdnn.cli.demo_arguments import ENVIRONMENT
from lowdnn.config import Config
from lowdnn.distributed.communicator import Communicator
from lowdnn.distributed.in_process import InProcessCommunicator, run_in_threads
from lowdnn.distributed.launching import launch
from lowdnn.distributed.meeting_point import MeetingPoint
from lowdnn.distributed.nccl import connect
from lowdnn.distributed.place import Place
from lowdnn.distributed.rendezvous import Meeting, everyone
from lowdnn.distributed.split import Split
from lowdnn.driver import open_driver
from lowdnn.runtime.runtime import Runtime
from lowdnn.status import BadParamError, InvalidValueError

#: Parts of a batch with ``--deterministic``, and so the most ranks.
_SHARDS = 8
#: Seconds that ranks wait for each other, compilation of kernels included.
_TIMEOUT_S = 300.0

Work = Callable[[Handle, Split], int]


def on_ranks(arguments: argparse.Namespace, work: Work) -> int:
    """Runs ``work`` on every rank, with a handle on its device; the exit code of the ranks.

    Raises BadParamError for more ranks than devices.
    """
    count = arguments.devices
    if count == ENVIRONMENT:
        return _as_rank_of_launcher(arguments, work)
    if count == 1:
        with Handle.open(arguments.device) as handle:
            return work(handle, _split(arguments, None))
    with Handle.open(arguments.device) as handle:
        gpus = 0 if handle.cuda_device is None else handle.runtime.driver.device_count()
    if not gpus:
        return _in_threads(arguments, work)
    if count > gpus:
        raise BadParamError.at("demo.devices", expected=f"1 to {gpus}, the GPUs of this machine", got=count)
    return launch(_command(arguments), count)


def check_devices(arguments: argparse.Namespace, batch: int) -> None:
    """Raises BadParamError for a number of devices that cannot share a batch equally; a launcher's is not known yet."""
    shared, what = (_SHARDS, "parts") if arguments.deterministic else (batch, "images")
    if arguments.devices != ENVIRONMENT and shared % arguments.devices:
        rule = f"a divisor of the {shared} {what} of each batch"
        raise InvalidValueError.at("demo.devices", expected=rule, got=arguments.devices)


def _split(arguments: argparse.Namespace, communicator: Communicator | None) -> Split:
    return Split(communicator, _SHARDS if arguments.deterministic else None)


def _in_threads(arguments: argparse.Namespace, work: Work) -> int:
    config = Config.from_environment()
    driver = open_driver(
        "emulated", arch=config.emulated_arch, policy=config.emulated_policy, devices=arguments.devices
    )

    def of_rank(rank: int, point: MeetingPoint) -> int:
        with Handle(Runtime(driver, device=rank, config=config)) as handle:
            return work(handle, _split(arguments, InProcessCommunicator(point, rank, handle.runtime.context)))

    return max(run_in_threads(arguments.devices, of_rank, timeout_s=_TIMEOUT_S))


def _as_rank_of_launcher(arguments: argparse.Namespace, work: Work) -> int:
    place = Place.from_environment()
    if place is None:
        raise BadParamError.at(
            "demo.devices",
            expected="torchrun, mpirun, srun or lowdnn demo --devices N as the parent",
            got="no rank in the environment",
        )
    ordinal = place.ordinal(open_driver("cuda").device_count())
    with Meeting(place, timeout_s=_TIMEOUT_S) as meeting, Handle.open("cuda", ordinal=ordinal) as handle:
        context = handle.runtime.context
        with connect(meeting.store, everyone(place), context, timeout_s=_TIMEOUT_S) as communicator:
            return work(handle, _split(arguments, communicator))


def _command(arguments: argparse.Namespace) -> list[str]:
    """The command of each rank: that of this process, with its place in the environment."""
    command = [sys.executable, "-m", "lowdnn", "demo", "--devices", ENVIRONMENT]
    command += ["--steps", str(arguments.steps), "--seed", str(arguments.seed)]
    command += ["--mixed-precision"] if arguments.mixed_precision else []
    command += ["--captured"] if arguments.captured else []
    command += ["--deterministic"] if arguments.deterministic else []
    command += ["--until", str(arguments.until)] if arguments.until is not None else []
    return command + (["--checkpoint", str(arguments.checkpoint)] if arguments.checkpoint else [])
