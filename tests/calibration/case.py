"""One calibration case: a PTX program, what it reads, what it writes and how far the results may differ."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lowdnn.driver.base import LaunchConfig
from lowdnn.tensor_map import Im2colMap, TiledMap

Array = np.ndarray[Any, np.dtype[Any]]

#: The numpy dtype that holds each kind of output. The float kinds are compared as numbers: any NaN equals any other,
#: because PTX leaves the payload open.
STORAGE: dict[str, str] = {
    "u8": "u1", "u16": "u2", "u32": "u4", "u64": "u8", "f16": "u2", "bf16": "u2", "f16x2": "u4", "bf16x2": "u4",
    "f32": "u4", "f64": "u8",
}  # fmt: skip

ONE_LAUNCH = LaunchConfig((1, 1, 1), (32, 1, 1))


@dataclass(frozen=True)
class Bound:
    """How far a result may lie from the GPU's: absolute + relative * |expected| + of_magnitude * M.

    M is what the same program gives for ``Case.magnitudes``, its inputs without their signs: for a matrix product the
    sum of the magnitudes of its terms. All zero: bit for bit. ``source`` says where the figures come from.
    """

    relative: float = 0.0
    absolute: float = 0.0
    of_magnitude: float = 0.0
    source: str = ""

    @property
    def is_exact(self) -> bool:
        return not (self.relative or self.absolute or self.of_magnitude)


EXACT = Bound()


@dataclass(frozen=True)
class Output:
    """A buffer that the program writes: ``count`` elements of ``kind`` (a key of ``STORAGE``).

    It holds ``initial`` before the launch, zeros if that is None.
    """

    label: str
    kind: str
    count: int
    bound: Bound = EXACT
    initial: Array | None = field(default=None, repr=False)


@dataclass(frozen=True)
class MapOf:
    """A tensor map of one of a case's buffers, inputs and outputs counted together. The address is filled in."""

    buffer: int
    description: TiledMap | Im2colMap


@dataclass(frozen=True)
class Case:
    """A program whose kernel ``case`` takes pointers to the inputs, then to the outputs, then tensor maps by value.

    ``magnitudes`` are the inputs of a second run that gives M of ``Bound``.
    """

    name: str
    ptx: str = field(repr=False)
    inputs: tuple[Array, ...] = field(repr=False)
    outputs: tuple[Output, ...]
    launch: LaunchConfig = ONE_LAUNCH
    magnitudes: tuple[Array, ...] | None = field(default=None, repr=False)
    tensor_maps: tuple[MapOf, ...] = ()

    def digest(self) -> str:
        """Identifies program, inputs and geometry: results recorded for another case must not be compared."""
        state = hashlib.sha256(self.ptx.encode())
        launch = self.launch
        state.update(repr((launch.grid, launch.block, launch.shared_bytes, launch.cluster, self.tensor_maps)).encode())
        for array in (*self.inputs, *(output.initial for output in self.outputs if output.initial is not None)):
            state.update(np.ascontiguousarray(array).tobytes())
        return state.hexdigest()[:16]
