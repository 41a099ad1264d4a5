"""Several processes, one endpoint: each process writes its measures into files of a directory, and one sums them.

The files are those of prometheus_client's multiprocess mode, so that an endpoint which a program has for it already
(``PROMETHEUS_MULTIPROC_DIR``, as under Gunicorn) serves lowdnn's measures too. Counters and histograms of a process
that has ended stay, gauges go with it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from time import time

if find_spec("prometheus_client") is None:
    raise ModuleNotFoundError(
        "lowdnn.telemetry.process_files needs prometheus_client: pip install 'lowdnn[prometheus]'",
        name="prometheus_client",
    )

from prometheus_client.mmap_dict import MmapedDict, mmap_key
from prometheus_client.multiprocess import mark_process_dead

from lowdnn.telemetry.measures import Kind, Measure
from lowdnn.telemetry.prometheus import series
from lowdnn.telemetry.registry import Registry
from lowdnn.telemetry.samples import Family

_LIVE_FILE = re.compile(r"gauge_live\w+_(\d+)\.db")


class ProcessFiles:
    """Exports into files of ``directory``, which ``Endpoint(directory=...)`` of one of the processes serves.

    Empty the directory before the first of the processes begins: what is there counts on.
    """

    def __init__(self, directory: Path | str) -> None:
        self.directory = Path(directory)
        self._files: dict[str, _File] = {}

    def open(self, registry: Registry) -> None:
        """Makes the directory, where it is missing; raises OSError where that is not possible."""
        self.directory.mkdir(parents=True, exist_ok=True)
        self.export(registry.collect())

    def export(self, families: Sequence[Family]) -> None:
        for family in families:
            measure = family.measure
            kind = _file_kind(measure)
            if kind not in self._files:
                self._files[kind] = _File(self.directory / f"{kind}_{os.getpid()}.db")
            for sample in family.samples:
                before = 0.0
                for name, labels, value in series(measure, sample):
                    if name.endswith("_count") and measure.kind is Kind.HISTOGRAM:
                        continue  # whoever sums up the buckets counts, too
                    is_bucket = "le" in labels
                    # The files have each bucket by itself.
                    self._files[kind].write(_key(measure, name, labels), value - before if is_bucket else value)
                    before = value if is_bucket else 0.0

    def close(self) -> None:
        """Removes this process's gauges; its counters and histograms stay."""
        self.after_fork()
        mark_process_dead(os.getpid(), str(self.directory))

    def after_fork(self) -> None:
        """Lets go of the parent's files."""
        for file in self._files.values():
            file.close()
        self._files.clear()


def remove_dead(directory: Path) -> None:
    """Removes the gauges of processes that have ended without ``close``."""
    for path in directory.glob("gauge_live*_*.db"):
        found = _LIVE_FILE.fullmatch(path.name)
        if found is not None and not _is_alive(int(found[1])):
            path.unlink(missing_ok=True)


class _File:
    """A file of values by key; what a former process of the same number has counted is counted on."""

    def __init__(self, path: Path) -> None:
        self._adds = not path.name.startswith("gauge")
        self._values = MmapedDict(str(path))
        self._former = {key: value for key, value, _ in self._values.read_all_values()} if self._adds else {}

    def write(self, key: str, value: float) -> None:
        self._values.write_value(key, value + self._former.get(key, 0.0), time())

    def close(self) -> None:
        self._values.close()


def _file_kind(measure: Measure) -> str:
    """The first part of a file's name, from which the reader knows how to sum up."""
    if measure.sums:
        return "gauge_livesum" if measure.kind is Kind.GAUGE else str(measure.kind)
    return "gauge_livemax"


def _key(measure: Measure, name: str, labels: dict[str, str]) -> str:
    return mmap_key(measure.name.removesuffix("_total"), name, list(labels), list(labels.values()), measure.help)


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # another user's
    return True
