"""Recorded results on disk: one compressed file for each family under ``data``.

A file is an LZMA stream of NumPy's npz archive: ``meta`` (JSON text: device, driver, date, cases with their digests)
and one array for each output, named ``<case>/<label>``.
"""

from __future__ import annotations

import io
import json
import lzma
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tests.calibration.case import Array

DATA = Path(__file__).resolve().parent / "data"


@dataclass(frozen=True)
class Recording:
    """The results of one device for the cases of one family.

    ``digests``: digests of the recorded cases by name; ``skipped``: why a case was not recorded; ``results``: by (case,
    label of the output).
    """

    device: str
    driver_version: int
    date: str
    digests: Mapping[str, str]
    skipped: Mapping[str, str]
    results: Mapping[tuple[str, str], Array]


def save(recording: Recording, path: Path) -> None:
    meta = {
        "device": recording.device,
        "driver_version": recording.driver_version,
        "date": recording.date,
        "digests": dict(recording.digests),
        "skipped": dict(recording.skipped),
    }
    arrays = {f"{case}/{label}": values for (case, label), values in recording.results.items()}
    archive = io.BytesIO()
    np.savez(archive, allow_pickle=False, meta=np.array(json.dumps(meta)), **arrays)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(lzma.compress(archive.getvalue(), preset=9))


def load(path: Path) -> Recording:
    with np.load(io.BytesIO(lzma.decompress(path.read_bytes())), allow_pickle=False) as archive:
        meta = json.loads(str(archive["meta"]))
        results = {_split(name): archive[name] for name in archive.files if name != "meta"}
    return Recording(meta["device"], meta["driver_version"], meta["date"], meta["digests"], meta["skipped"], results)


def path_of(family: str, directory: Path = DATA) -> Path:
    return directory / f"{family}.npz.xz"


def _split(name: str) -> tuple[str, str]:
    case, label = name.split("/", 1)
    return case, label
