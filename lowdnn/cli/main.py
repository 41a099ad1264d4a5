"""The ``lowdnn`` command: ``info``, ``run``, ``tune``, ``bench``, ``kernels``, ``cache``, ``demo``, ``guide``."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from lowdnn import __version__
from lowdnn.cli.bench_arguments import add_bench_arguments
from lowdnn.cli.cache_arguments import add_cache_arguments
from lowdnn.cli.kernels_arguments import add_kernels_arguments
from lowdnn.cli.tune_arguments import add_tune_arguments
from lowdnn.status import LowdnnError

#: Exit code after a signal: 128 plus its number.
_INTERRUPTED = 130
_BROKEN_PIPE = 141


def main(argv: Sequence[str] | None = None) -> int:
    """Parses ``argv`` (default: the command line) and runs one command. Returns the exit code: 2 for bad input.

    Ctrl-C and a closed pipe give what a shell gives for SIGINT and SIGPIPE.
    """
    arguments = _parser().parse_args(argv)
    try:
        code = _COMMANDS[arguments.command](arguments)
        sys.stdout.flush()
        return code
    except LowdnnError as error:
        print(f"lowdnn: {error}", file=sys.stderr)
        return 2
    except MemoryError:
        print("lowdnn: HOST_ALLOCATION_FAILED: the host's memory is not large enough", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("lowdnn: interrupted", file=sys.stderr)
        return _INTERRUPTED
    except BrokenPipeError:
        # The reader (head, a pager) has seen enough; the interpreter must not fail on its last flush.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _BROKEN_PIPE


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="lowdnn", description="Deep-learning primitives for NVIDIA GPUs.")
    parser.add_argument("--version", action="version", version=f"lowdnn {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    info = commands.add_parser("info", help="versions, devices, caches, and what is missing")
    info.add_argument("--json", action="store_true", help="one JSON object")
    run = commands.add_parser("run", help="run text cases on a device and check them")
    _add_run_arguments(run)
    add_kernels_arguments(
        commands.add_parser("kernels", help="the kernels that a workload needs, and few that serve it")
    )
    add_bench_arguments(commands.add_parser("bench", help="time cases, save and draw the times, compare two versions"))
    add_tune_arguments(commands.add_parser("tune", help="time the plans of text cases, and keep what is fastest"))
    add_cache_arguments(commands.add_parser("cache", help="compiled kernels on disk, and bundles to ship"))
    demo = commands.add_parser("demo", help="train a convolutional network on handwritten digits; exit 1 under 97 %%")
    _add_demo_arguments(demo)
    guide = commands.add_parser("guide", help="pages on how lowdnn is used and built, recipes, and the reference")
    guide.add_argument("topic", nargs="?", metavar="TOPIC", help="the page to print (default: the list of topics)")
    return parser


def _add_demo_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", choices=("auto", "cuda", "emulated"), help="where to run (default: LOWDNN_DEVICE)")
    parser.add_argument("--mixed-precision", action="store_true", help="activations in fp16, with a dynamic loss scale")
    parser.add_argument("--steps", type=int, default=70, metavar="N", help="steps of the training (default 70)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the weights and of the order (default 0)")


def _add_run_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("cases", nargs="+", metavar="CASE", help="a case in quotes, or @FILE with one a line")
    parser.add_argument("--device", choices=("auto", "cuda", "emulated"), help="where to run (default: LOWDNN_DEVICE)")
    parser.add_argument("--check", action="store_true", help="compare with the float64 reference; exit 1 if it differs")
    parser.add_argument(
        "--exact", action="store_true", help="integer-filled data, compared bit for bit; implies --check"
    )
    parser.add_argument("--engine", help="this engine instead of the heuristics' first choice; 'all' for each that can")
    parser.add_argument(
        "--policy",
        help="scheduling policy of the emulated device: lockstep, warp-serial(7), cta-reverse, fuzz(7); with ,early or "
        ",late when copies land; with ,races data races are looked for",
    )
    parser.add_argument(
        "--sanitize",
        action="store_true",
        help="on the emulated device, under many schedules, with every check; one verdict for each",
    )
    parser.add_argument(
        "--schedules", type=int, default=4, metavar="N", help="fuzzed schedules of --sanitize (default 4)"
    )
    parser.add_argument("--arch", help="architecture of the emulated device: sm_80, sm_90a, sm_120...")
    parser.add_argument("--repeats", type=int, default=1, metavar="N", help="times are medians of N executes")
    parser.add_argument("--seed", type=int, help="seed of the input data (default: drawn and printed)")
    parser.add_argument("--explain", action="store_true", help="why the plan was chosen, before its result")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")


def _info(arguments: argparse.Namespace) -> int:
    from lowdnn.cli.info import info

    return info(arguments)


def _run(arguments: argparse.Namespace) -> int:
    from lowdnn.cli.run import run

    return run(arguments)


def _kernels(arguments: argparse.Namespace) -> int:
    from lowdnn.cli.kernels import kernels

    return kernels(arguments)


def _tune(arguments: argparse.Namespace) -> int:
    from lowdnn.cli.tune import tune

    return tune(arguments)


def _cache(arguments: argparse.Namespace) -> int:
    from lowdnn.cli.cache import cache

    return cache(arguments)


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
    "run": _run,
    "tune": _tune,
    "bench": _bench,
    "kernels": _kernels,
    "cache": _cache,
    "demo": _demo,
    "guide": _guide,
}


if __name__ == "__main__":
    sys.exit(main())
