"""Saved data and outputs of cases: a ``.npz`` file of NumPy arrays, with a JSON document beside them.

``baseline.json`` is the document, ``<case>.inputs.<uid>.npy`` and ``<case>.outputs.<uid>.npy`` are the storage arrays
of a case's tensors, where cases count from 0. ``<case>.steps.<uid>.npy`` in float64 is there for outputs of integers
next to a tie: by how much more each may differ. ``numpy.load`` reads the arrays, and a program may write its own. A
file from outside is never trusted: each array has the type and the extents that the case says, nothing is unpickled,
and no more is read than that.
"""

from __future__ import annotations

import io
import os
import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lowdnn import __version__, dtypes
from lowdnn.cases import parse_case
from lowdnn.cases.base import Case
from lowdnn.cases.compare import EXACT, Expected, Tolerance
from lowdnn.cli.case_results import Judged
from lowdnn.cli.execution import Arrays
from lowdnn.cli.reading import Line, ReadCase, check_cases
from lowdnn.documents import MAX_BYTES, is_name, read_document, shown, write_document
from lowdnn.enums import DataType
from lowdnn.graph.graph import OperationGraph
from lowdnn.ops.tensor import Tensor
from lowdnn.plan import Plan
from lowdnn.runtime.cache_files import write
from lowdnn.runtime.shared_files import place_of
from lowdnn.status import BadParamError

_DOCUMENT = "baseline.json"
_KIND, _VERSION = "lowdnn_baseline", 1
_FIELDS = {"lowdnn": str, "device": str, "cases": list}
_MAX_CASES = 10_000
#: The most bytes of an array's head in a file.
_MAX_HEAD_BYTES = 4096


@dataclass(frozen=True)
class SavedCase:
    """A case with its data and outputs by uid, and what other outputs may differ from them."""

    case: Case
    inputs: Arrays
    outputs: Mapping[int, Expected]


@dataclass(frozen=True)
class Baseline:
    """device, lowdnn: where and by which version the outputs were made."""

    device: str
    lowdnn: str
    cases: tuple[SavedCase, ...]


class SavedOutputs:
    """A source of data and outputs: those of a saved case. is_exact: nothing may differ."""

    def __init__(self, saved: SavedCase, is_exact: bool) -> None:
        self._saved = saved
        self._is_exact = is_exact

    def inputs(self, case: Case, seed: int, exact: bool) -> Arrays:
        return self._saved.inputs

    def expected(self, case: Case, graph: OperationGraph, inputs: Arrays, plan: Plan) -> Mapping[int, Expected]:
        outputs = self._saved.outputs
        if self._is_exact:
            return {uid: replace(expected, allowed=EXACT) for uid, expected in outputs.items()}
        return outputs


def saved_case(case: Case, judged: Judged) -> SavedCase:
    """The data and outputs of a result.

    Other results may differ from it by twice what it was judged by: it has errors of its own.
    """
    outputs = {
        uid: Expected(judged.outputs[uid], wanted.allowed.of_two_results) for uid, wanted in judged.expected.items()
    }
    return SavedCase(case, judged.inputs, outputs)


def write_baseline(path: str, device: str, cases: Sequence[SavedCase]) -> None:
    """Writes the file, whole or not at all. Raises BadParamError where that does not go."""
    entries = [
        {
            "case": str(saved.case),
            "tolerances": [
                [uid, wanted.allowed.relative, wanted.allowed.absolute] for uid, wanted in saved.outputs.items()
            ],
        }
        for saved in cases
    ]
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        fields = {"lowdnn": __version__, "device": device, "cases": entries}
        with archive.open(_DOCUMENT, "w") as file:
            file.write(write_document(_KIND, _VERSION, fields).encode())
        for number, saved in enumerate(cases):
            for kind, arrays in _arrays(saved).items():
                for uid, array in arrays.items():
                    with archive.open(_entry(number, kind, uid), "w") as file:
                        np.lib.format.write_array(file, np.ascontiguousarray(array), allow_pickle=False)
    try:
        with place_of(Path(path)) as folder:
            write(folder, Path(path).name, content.getvalue(), mode=0o644)
    except (OSError, ValueError) as error:
        raise BadParamError.at("verify.save", expected="a file that can be written", got=f"{path}: {error}") from None


def _arrays(saved: SavedCase) -> Mapping[str, Arrays]:
    """The arrays of a file by kind and uid."""
    outputs = {uid: wanted.values for uid, wanted in saved.outputs.items()}
    allowed = {uid: wanted.allowed.steps for uid, wanted in saved.outputs.items()}
    steps = {uid: array for uid, array in allowed.items() if array is not None}
    return {"inputs": saved.inputs, "outputs": outputs, "steps": steps}


def read_baseline(path: str) -> Baseline:
    """The cases of a file that ``write_baseline`` wrote; raises BadParamError, naming the entry, for another one."""
    where = f"baseline {shown(path)}"
    with _opened(path, where) as archive:
        text = _content(archive, _DOCUMENT, MAX_BYTES, where)
        document = read_document(text, _KIND, _VERSION, _FIELDS, where)
        if len(document["cases"]) > _MAX_CASES or not document["cases"]:
            raise BadParamError.at(where, expected=f"1 to {_MAX_CASES} cases", got=len(document["cases"]))
        cases = tuple(_case(archive, number, entry, where) for number, entry in enumerate(document["cases"]))
    device, version = (document[name] if is_name(document[name]) else "unknown" for name in ("device", "lowdnn"))
    return Baseline(device, version, cases)


@contextmanager
def _opened(path: str, where: str) -> Iterator[zipfile.ZipFile]:
    try:
        if not os.path.isfile(path):
            raise BadParamError.at(where, expected="a regular file", got="none")
        with zipfile.ZipFile(path) as archive:
            yield archive
    except BadParamError:
        raise
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error, struct.error, RuntimeError) as error:
        # RuntimeError: an entry is encrypted, or of a version that Python does not know.
        hint = "make one by lowdnn verify --save"
        raise BadParamError.at(where, expected="a file of saved outputs", got=error, hint=hint) from None


def _case(archive: zipfile.ZipFile, number: int, entry: Any, where: str) -> SavedCase:
    """The case of an entry of the document, and its arrays."""
    place = f"{where}.cases[{number}]"
    if not isinstance(entry, dict) or set(entry) != {"case", "tolerances"} or not isinstance(entry["case"], str):
        raise BadParamError.at(place, expected="a case and its tolerances", got=shown(entry))
    line = Line(entry["case"], place)
    with line.named():
        case = parse_case(entry["case"])
        graph = case.graph()
    check_cases([ReadCase(case, 1, line)])
    allowed = _tolerances(entry["tolerances"], graph, place)

    def arrays(kind: str, tensors: Sequence[Tensor], data_type: DataType | None = None) -> dict[int, NDArray[Any]]:
        types = {each.uid: dtypes.info(data_type or each.data_type).storage for each in tensors}
        return {
            each.uid: _array(archive, _entry(number, kind, each.uid), np.dtype(types[each.uid]), each.dims, where)
            for each in tensors
        }

    outputs = arrays("outputs", graph.outputs)
    near_ties = [each for each in graph.outputs if _entry(number, "steps", each.uid) in archive.NameToInfo]
    for uid, steps in arrays("steps", near_ties, DataType.DOUBLE).items():
        if not (steps >= 0).all():
            raise BadParamError.at(f"{place}.steps.{uid}", expected="numbers of 0 or more", got="others")
        allowed[uid] = replace(allowed[uid], steps=steps)
    given = [graph.tensors[uid] for uid in case.inputs(0, exact=False)]
    return SavedCase(
        case, arrays("inputs", given), {uid: Expected(values, allowed[uid]) for uid, values in outputs.items()}
    )


def _tolerances(rows: Any, graph: OperationGraph, place: str) -> dict[int, Tolerance]:
    """By uid; each is (uid, relative, absolute), for every output once."""
    uids = [tensor.uid for tensor in graph.outputs]
    is_right = isinstance(rows, list) and all(
        isinstance(row, list) and len(row) == 3 and all(isinstance(each, int | float) and each >= 0 for each in row)
        for row in rows
    )
    if not is_right or sorted(row[0] for row in rows) != sorted(uids):
        rule = f"(uid, relative, absolute) for each of the outputs {uids}"
        raise BadParamError.at(f"{place}.tolerances", expected=rule, got=shown(rows))
    return {int(uid): Tolerance(float(relative), float(absolute)) for uid, relative, absolute in rows}


def _array(
    archive: zipfile.ZipFile, name: str, dtype: np.dtype[Any], shape: tuple[int, ...], where: str
) -> NDArray[Any]:
    """The array of an entry, which has this type and these extents."""
    size_bytes = int(np.prod(shape, dtype=object)) * dtype.itemsize
    content = io.BytesIO(_content(archive, name, size_bytes + _MAX_HEAD_BYTES, where))
    version = np.lib.format.read_magic(content)
    read_head = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    found, is_fortran, found_dtype = read_head(content, max_header_size=_MAX_HEAD_BYTES)
    data = content.read()
    if found != shape or is_fortran or found_dtype != dtype or len(data) != size_bytes:
        got = f"{found_dtype} {found} in {len(data)} bytes"
        raise BadParamError.at(f"{where}: {name}", expected=f"{dtype} {shape} in C order", got=got)
    return np.frombuffer(data, dtype).reshape(shape)


def _content(archive: zipfile.ZipFile, name: str, most_bytes: int, where: str) -> bytes:
    """The bytes of an entry, of which there are at most so many, whatever its head says."""
    entry = archive.NameToInfo.get(name)
    if entry is None or entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise BadParamError.at(where, expected=f"an entry {name}, stored or deflated", got="none")
    with archive.open(name) as file:
        data = file.read(most_bytes + 1)
    if len(data) > most_bytes:
        raise BadParamError.at(f"{where}: {name}", expected=f"at most {most_bytes} bytes", got="more")
    return data


def _entry(number: int, kind: str, uid: int) -> str:
    return f"{number}.{kind}.{uid}.npy"
