"""A fused convolution through pygraph: a program for cudnn-frontend, with one import changed.

    python -m tools.examples.fused_convolution

It finds the edges of handwritten digits: y = relu(conv(x, w) * scale + bias) in fp16, channels last, with Sobel's
filter in eight directions. It prints what each engine says of the graph, and pictures, and checks y against float64 bit
for bit. ``fused_convolution_backend.py`` runs the same graph through backend descriptors.
"""

from __future__ import annotations

import sys

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

import lowdnn
import lowdnn.frontend as cudnn
from lowdnn.cli import digits
from lowdnn.ops.tensor import channels_last_strides

#: One cell of terminal text for each of five brightness levels.
_SHADES = " .:*#"

Arrays = dict[str, NDArray[np.floating]]


def main(device: str | None = None) -> int:
    """Runs on ``device`` (None: the GPU, or the emulated device where there is none); 0 where y is right."""
    arrays = inputs()
    with lowdnn.create_handle(device) as handle:
        y = edges(handle, arrays)
    for digit, responses in zip(arrays["x"][:3], y, strict=False):
        lines = zip(picture(digit[0]), picture(responses.max(axis=0)), strict=True)
        print("\n".join(f"  {left}   {right}" for left, right in lines), end="\n\n")
    return verdict(y, arrays)


def edges(handle: cudnn.Handle, arrays: Arrays) -> NDArray[np.float16]:
    """y, (16, 8, 8, 8), computed on the handle's device."""
    graph = cudnn.pygraph(
        io_data_type=cudnn.data_type.HALF,
        intermediate_data_type=cudnn.data_type.FLOAT,
        compute_data_type=cudnn.data_type.FLOAT,
        handle=handle,
    )
    on_device = {
        name: lowdnn.from_numpy(array, handle, strides=channels_last_strides(array.shape))
        for name, array in arrays.items()
    }
    x, w, scale, bias = (graph.tensor_like(array, name=name) for name, array in on_device.items())
    convolved = graph.conv_fprop(x, w, padding=[1, 1], stride=[1, 1], dilation=[1, 1])
    y = graph.relu(graph.bias(graph.scale(convolved, scale), bias)).set_output(True).set_name("y")
    graph.build([cudnn.heur_mode.A])
    print(graph.explain(), end="\n\n")

    shape = tuple(y.get_dim())
    on_device["y"] = lowdnn.from_numpy(np.zeros(shape, np.float16), handle, strides=channels_last_strides(shape))
    workspace = lowdnn.from_numpy(np.zeros(max(graph.get_workspace_size(), 1), np.uint8), handle)
    graph.execute(on_device, workspace, handle=handle)
    return np.asarray(on_device["y"].numpy())


def inputs() -> Arrays:
    """x (16, 1, 8, 8) with pixels from 0 to 16, w (8, 1, 3, 3), scale and bias (1, 8, 1, 1).

    All are small integers or powers of two, so that fp32 arithmetic is exact.
    """
    training, _ = digits.load()
    return {
        "x": (training.images[:16, None] * 16).astype(np.float16),
        "w": edge_filters(),
        "scale": np.full((1, 8, 1, 1), 0.125, np.float32),
        "bias": np.full((1, 8, 1, 1), -0.5, np.float32),
    }


def edge_filters() -> NDArray[np.float16]:
    """Sobel's filter turned into the eight compass directions, as (8, 1, 3, 3).

    Source: I. Sobel, G. Feldman, 1968, "A 3x3 isotropic gradient operator for image processing".
    """
    ring = [(0, 0), (0, 1), (0, 2), (1, 2), (2, 2), (2, 1), (2, 0), (1, 0)]
    weights = [1, 2, 1, 0, -1, -2, -1, 0]
    filters = np.zeros((8, 1, 3, 3), np.float16)
    for direction in range(8):
        for place, (row, column) in enumerate(ring):
            filters[direction, 0, row, column] = weights[(place - direction) % 8]
    return filters


def verdict(y: NDArray[np.float16], arrays: Arrays) -> int:
    """Prints whether y is what float64 gives, rounded to fp16; 0 if so, otherwise 1."""
    x, w, scale, bias = (array.astype(np.float64) for array in arrays.values())
    windows = sliding_window_view(np.pad(x[:, 0], ((0, 0), (1, 1), (1, 1))), (3, 3), (1, 2))
    convolved = np.einsum("nhwrs,krs->nkhw", windows, w[:, 0])
    is_equal = np.array_equal(y, np.maximum(convolved * scale + bias, 0).astype(np.float16))
    print(f"y is {'equal to' if is_equal else 'DIFFERENT from'} the float64 reference, rounded to fp16")
    return 0 if is_equal else 1


def picture(image: NDArray[np.floating]) -> list[str]:
    """Lines of text that show a 2-D image, scaled to its brightest pixel."""
    level = np.rint(image.astype(np.float32) / max(float(image.max()), 1.0) * (len(_SHADES) - 1)).astype(int)
    return ["".join(_SHADES[value] * 2 for value in row) for row in level]


if __name__ == "__main__":
    sys.exit(main())
