"""The ``lowdnn`` command: ``info``, ``doctor``, ``run``, ``verify``, ``tune``, ``bench``, ``cache`` and more."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from lowdnn import __version__
from lowdnn.cli.bench_arguments import add_bench_arguments
from lowdnn.cli.cache_arguments import add_cache_arguments
from lowdnn.cli.demo_arguments import add_demo_arguments
from lowdnn.cli.doctor.arguments import add_doctor_arguments
from lowdnn.cli.kernels_arguments import add_kernels_arguments
from lowdnn.cli.operations_arguments import add_operations_arguments
from lowdnn.cli.output import ClosedPipeError, OutputError, command_output, drop_unwritable_errors, tell
from lowdnn.cli.replay_arguments import add_replay_arguments
from lowdnn.cli.run_arguments import add_run_arguments
from lowdnn.cli.tune_arguments import add_tune_arguments
from lowdnn.cli.verify.arguments import add_verify_arguments
from lowdnn.status import LowdnnError

#: Exit statuses besides a command's own 0 and 1; ``lowdnn guide commands`` says what each means.
_NOT_DONE = 2
#: After a signal, a shell gives 128 plus its number: SIGINT, SIGPIPE.
_INTERRUPTED = 130
_BROKEN_PIPE = 141
_EXIT_STATUSES = (
    "Exit status: 0 done; 1 done, and a result is bad (a case failed, is slower, has no kernel); 2 not done: bad "
    "input, or a place that cannot be read or written; 130 interrupted; 141 the reader of the output has gone."
)


def main(argv: Sequence[str] | None = None) -> int:
    """Parses ``argv`` (default: the command line) and runs one command. Returns the exit status.

    A command that does not return says why in a line on standard error.
    """
    try:
        with command_output():
            arguments = _parser().parse_args(argv)
            return _COMMANDS[arguments.command](arguments)
    except LowdnnError as error:
        tell(str(error))
        return _NOT_DONE
    except MemoryError:
        tell("HOST_ALLOCATION_FAILED: the host's memory is not large enough")
        return _NOT_DONE
    except KeyboardInterrupt as interrupt:
        tell(f"interrupted{''.join(f'; {word}' for word in interrupt.args)}")
        return _INTERRUPTED
    except ClosedPipeError as error:
        tell(str(error))
        return _BROKEN_PIPE
    except (OutputError, OSError) as error:  # OSError: temporary files have no room, for one
        tell(str(error))
        return _NOT_DONE
    finally:
        drop_unwritable_errors()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="lowdnn", description="Deep-learning primitives for NVIDIA GPUs.", epilog=_EXIT_STATUSES
    )
    parser.add_argument("--version", action="version", version=f"lowdnn {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    info = commands.add_parser("info", help="versions, devices, caches, and what is missing")
    info.add_argument("--json", action="store_true", help="one JSON object")
    add_doctor_arguments(commands.add_parser("doctor", help="checks of the installation, the machine and its devices"))
    add_run_arguments(commands.add_parser("run", help="run text cases on a device and check them"))
    add_verify_arguments(
        commands.add_parser("verify", help="whether every device computes what references or saved outputs say")
    )
    replay = commands.add_parser("replay", help="run a failing call again that LOWDNN_DUMP has kept, with every check")
    add_replay_arguments(replay)
    add_kernels_arguments(
        commands.add_parser("kernels", help="the kernels that a workload needs, and few that serve it")
    )
    add_bench_arguments(commands.add_parser("bench", help="time cases, save and draw the times, compare two versions"))
    add_tune_arguments(commands.add_parser("tune", help="time the plans of text cases, and keep what is fastest"))
    add_cache_arguments(commands.add_parser("cache", help="compiled kernels on disk, and bundles to ship"))
    add_operations_arguments(commands.add_parser("operations", help="rules, routes and dashboards for people on call"))
    demo = commands.add_parser("demo", help="train a convolutional network on handwritten digits; exit 1 under 97 %%")
    add_demo_arguments(demo)
    guide = commands.add_parser("guide", help="pages on how lowdnn is used and built, recipes, and the reference")
    guide.add_argument("topic", nargs="?", metavar="TOPIC", help="the page to print (default: the list of topics)")
    return parser


def _info(arguments: argparse.Namespace) -> int:
    from lowdnn.cli.info import info

    return info(arguments)


def _doctor(arguments: argparse.Namespace) -> int:
    from lowdnn.cli.doctor.command import doctor

    return doctor(arguments)


def _run(arguments: argparse.Namespace) -> int:
    from lowdnn.cli.run import run

    return run(arguments)


def _verify(arguments: argparse.Namespace) -> int:
    from lowdnn.cli.verify.command import verify

    return verify(arguments)


def _replay(arguments: argparse.Namespace) -> int:
    from lowdnn.cli.replay import replay

    return replay(arguments)


def _kernels(arguments: argparse.Namespace) -> int:
    from lowdnn.cli.kernels import kernels

    return kernels(arguments)


def _tune(arguments: argparse.Namespace) -> int:
    from lowdnn.cli.tune import tune

    return tune(arguments)


def _cache(arguments: argparse.Namespace) -> int:
    from lowdnn.cli.cache import cache

    return cache(arguments)


def _operations(arguments: argparse.Namespace) -> int:
    from lowdnn.cli.operations import operations

    return operations(arguments)


def _bench(arguments: argparse.Namespace) -> int:
    from lowdnn.cli.bench import bench

    return bench(arguments)


def _demo(arguments: argparse.Namespace) -> int:
    from lowdnn.cli.demo import demo

    return demo(arguments)


def _guide(arguments: argparse.Namespace) -> int:
    from lowdnn.cli.guide import guide

    return guide(arguments)


_COMMANDS = {
    "info": _info,
    "doctor": _doctor,
    "run": _run,
    "replay": _replay,
    "verify": _verify,
    "tune": _tune,
    "bench": _bench,
    "kernels": _kernels,
    "cache": _cache,
    "operations": _operations,
    "demo": _demo,
    "guide": _guide,
}


if __name__ == "__main__":
    sys.exit(main())
