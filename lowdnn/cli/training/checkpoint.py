"""Checkpoints of a training: what the next step needs, whichever the number of ranks that take it.

A file of arrays as ``numpy.savez`` writes it: parameters, momenta, running statistics, the loss scale, and as JSON the
step and the facts that must be the same. All ranks hold the same state, so the first one writes and reads the file, and
the others get it from there.
"""

from __future__ import annotations

import io
import json
import os
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lowdnn import checks, dtypes
from lowdnn.cli.training.network import Network
from lowdnn.cli.training.session import Session, dims_of
from lowdnn.enums import DataType
from lowdnn.runtime.buffer import DeviceBuffer
from lowdnn.status import BadParamError

#: Names the form of the file.
_FORMAT = "lowdnn-demo-1"


class Checkpoint:
    """The checkpoint of ``network`` at ``path``; None keeps none.

    ``facts``: values that a training must share with the one that wrote the file.
    """

    def __init__(self, path: Path | None, session: Session, network: Network, facts: Mapping[str, object]) -> None:
        self._path = path
        self._session = session
        self._state = _state(network)
        self._facts = {"format": _FORMAT, "mixed_precision": session.is_mixed, **facts}

    def load(self) -> int:
        """Takes the state over, on all ranks; the steps that are done: 0 where there is no file.

        Raises BadParamError for a file that is none, or that of another training.
        """
        if self._path is None:
            return 0
        split, step = self._session.split, 0
        if split.rank == 0 and self._path.exists():
            step = self._read(self._path)
        if split.communicator is None:
            return step
        told = self._session.on_device(np.array([step]), DataType.INT32)
        for array in (told, *self._state.values()):
            split.communicator.broadcast(array, root=0, stream=self._session.handle.borrowed_stream())
        self._session.synchronize()
        return int(self._session.read_back(told).item())

    def save(self, step: int) -> None:
        """Writes the file anew, as one step: a process that ends meanwhile leaves the one before."""
        if self._path is None or self._session.split.rank:
            return
        arrays = {name: np.ascontiguousarray(self._session.read_back(array)) for name, array in self._state.items()}
        facts = np.frombuffer(json.dumps(self._facts | {"step": step}).encode(), np.uint8)
        content = io.BytesIO()
        np.savez(content, allow_pickle=False, facts=facts, **arrays)
        whole = self._path.with_name(f"{self._path.name}.{os.getpid()}")
        try:
            whole.write_bytes(content.getvalue())
            os.replace(whole, self._path)
        except OSError as error:
            raise BadParamError.at("demo.checkpoint", expected="a file that may be written", got=error) from error

    def _read(self, path: Path) -> int:
        content = _content(path)
        facts = checks.mapping(json.loads(content.pop("facts").tobytes()), "demo.checkpoint.facts", "facts")
        step = checks.integer(facts.get("step"), "demo.checkpoint.step", 0)
        wanted = self._facts | {"step": step}
        if facts != wanted:
            raise BadParamError.at("demo.checkpoint", expected=f"one of {wanted}", got=facts)
        for name, array in self._state.items():
            if name not in content:
                raise BadParamError.at("demo.checkpoint", expected=f"an array {name}", got=sorted(content))
            self._put(name, content[name], array)
        return step

    def _put(self, name: str, stored: NDArray[Any], target: DeviceBuffer) -> None:
        wanted = dims_of(target), dtypes.info(target.data_type or DataType.FLOAT).storage
        if (stored.shape, stored.dtype) != wanted:
            raise BadParamError.at(
                f"demo.checkpoint.{name}",
                expected=f"dims {wanted[0]} of {wanted[1]}",
                got=f"{stored.shape} of {stored.dtype}",
            )
        target.copy_from_host(np.ascontiguousarray(stored), self._session.handle.borrowed_stream())


def _content(path: Path) -> dict[str, NDArray[Any]]:
    """The arrays of the file, of which ``facts`` are bytes of JSON. Raises BadParamError for a file without them."""
    try:
        # As a zip archive: ``numpy.load`` takes other files, too.
        with zipfile.ZipFile(path), np.load(path, allow_pickle=False) as file:
            found = dict(file)
            json.loads(found["facts"].tobytes())
            return found
    # RuntimeError: bits of the archive that ask for what zipfile lacks.
    except (OSError, ValueError, KeyError, EOFError, RuntimeError, zipfile.BadZipFile) as error:
        raise BadParamError.at(
            "demo.checkpoint", expected="a file that lowdnn demo wrote", got=f"{path}: {error}"
        ) from error


def _state(network: Network) -> dict[str, DeviceBuffer]:
    """All that training changes, by name: packed arrays, of which those of statistics have one channel axis."""
    parameters, scale = network.parameters, network.loss_scale
    state = {"masters": parameters.masters, "momenta": parameters.momenta}
    for number, running in enumerate(network.running, 1):
        state |= {f"mean{number}": running.mean, f"variance{number}": running.variance}
    if scale is not None:
        state |= {"values": parameters.values, "scale": scale.value, "updates": scale.updates}
    return state
