"""A process that compiles kernels into the disk cache, for another one: ``python -m lowdnn.runtime.compile_worker``.

It reads a JSON line for each kernel and answers each with a line: empty where the cache has the kernel now, else the
error. It ends with its input, so that none is left behind by a process that dies. Only the process that started it
writes to it.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

from lowdnn.config import Config
from lowdnn.events import Counters
from lowdnn.one_line import one_line
from lowdnn.plan import KernelRef
from lowdnn.runtime.cache import DiskCache
from lowdnn.runtime.compile import KernelCompiler
from lowdnn.runtime.module_store import ModuleStore
from lowdnn.runtime.sources import SourceTree
from lowdnn.status import LowdnnError


def main() -> int:
    directory, limit_bytes = sys.argv[1:]
    cache = DiskCache(Path(directory), int(limit_bytes))
    compiler = KernelCompiler(sources=SourceTree(), store=ModuleStore.installed(), cache=cache, counters=Counters())
    for line in sys.stdin:
        sys.stdout.write(f"{_compiled(compiler, *_request(line))}\n")
        sys.stdout.flush()
    return 0


def request(kernel: KernelRef, machine_arch: str) -> str:
    """The line that asks for machine code of ``machine_arch``, or for PTX where that is empty."""
    return json.dumps({**asdict(kernel), "machine_arch": machine_arch})


def command(config: Config) -> tuple[str, ...]:
    """The command line of a worker for the disk cache of ``config``, which has one."""
    return (sys.executable, "-m", __spec__.name, str(config.cache_dir), str(config.cache_limit_bytes))


def _request(line: str) -> tuple[KernelRef, str]:
    fields = json.loads(line)
    machine_arch = fields.pop("machine_arch")
    fields["parameters"] = tuple((name, value) for name, value in fields["parameters"])
    return KernelRef(**fields), machine_arch


def _compiled(compiler: KernelCompiler, kernel: KernelRef, machine_arch: str) -> str:
    try:
        next(compiler.images(kernel, machine_arch))
    except LowdnnError as error:
        return one_line(str(error)) or type(error).__name__
    return ""


if __name__ == "__main__":
    sys.exit(main())
