"""Paddings, dilations, strides and filters beyond what tensor maps can say, and tensors beyond 2**31 elements."""

from __future__ import annotations

from typing import Any

import pytest

from lowdnn.backend.handle import Handle
from lowdnn.cases import parse_case
from lowdnn.enums import HeurMode
from lowdnn.heuristics.ranking import rank
from lowdnn.ops.base import inputs_of
from tests.support.data import fresh_seed
from tests.sweeps.checking import failures
from tests.sweeps.torch_reference import reference
from tests.sweeps.torch_tensors import blank, execute, integers

_FAR = (
    "conv n=1 c=16 hw=8x8 k=16 rs=3x3 pad=150x1 dil=150x1",
    "conv n=1 c=16 hw=8x8 k=16 rs=3x3 pad=1x150 dil=1x150",
    "conv n=1 c=16 hw=6x6 k=8 rs=3x3 pad=3 stride=17",
    "conv n=1 c=8 hw=5x5 k=8 rs=1x1 pad=200 stride=64",
    "conv n=1 c=8 hw=9 k=8 rs=3 pad=40000 dil=40000",
    "conv n=1 c=8 hw=3x4x5 k=8 rs=3x3x3 pad=20 dil=20",
    "conv n=1 c=8 hw=4x4 k=8 rs=2x2 pad=0:300x300:0 stride=99",
    "conv n=1 c=8 hw=300x1 k=8 rs=290x1",
    "conv n=1 c=8 hw=1x1 k=8 rs=31x31 pad=15",
)

#: 37 images, 2.4e9 elements in the image and in the response.
_HUGE = "conv n={n} c=64 hw=1000x1000 k=64 rs=3x3 pad=1 dtype=bf16 dir={direction}"
_IMAGES = 37


@pytest.mark.parametrize("direction", ["fprop", "dgrad", "wgrad"])
@pytest.mark.parametrize("text", _FAR)
def test_far_paddings_dilations_and_strides(handle: Handle, text: str, direction: str) -> None:
    seed = fresh_seed()
    wrong = failures(handle, f"{text} dtype=bf16 dir={direction}", seed, "all")
    assert not wrong, "\n".join(wrong)


@pytest.mark.gpu
@pytest.mark.parametrize("direction", ["fprop", "dgrad", "wgrad"])
def test_more_than_two_to_the_31_elements(direction: str) -> None:
    """The first choice is exact on the images looked at, the last among them; for wgrad on the sum over all."""
    torch = pytest.importorskip("torch", reason="the reference runs on the GPU")
    graph = parse_case(_HUGE.format(n=_IMAGES, direction=direction)).graph()
    torch.manual_seed(fresh_seed())
    tensors = {tensor.uid: integers(torch, tensor, largest=1) for tensor in graph.inputs}
    (output,) = graph.outputs
    tensors[output.uid] = blank(torch, output)
    with Handle.open("cuda") as handle:
        ranking = rank(graph, handle.arch, HeurMode.A, handle.engines)
        assert ranking.candidates, ranking.explain()
        execute(torch, handle, ranking.candidates[0].plan, tensors)
    inputs = {port: tensors[tensor.uid] for port, tensor in inputs_of(graph.operations[0]).items()}
    if direction == "wgrad":
        total = sum(_of_image(torch, inputs, direction, image) for image in range(_IMAGES))
        assert torch.equal(tensors[output.uid], total.bfloat16())
        return
    for image in (0, _IMAGES // 2, _IMAGES - 1):
        expected = _of_image(torch, inputs, direction, image).bfloat16()
        assert torch.equal(tensors[output.uid][image : image + 1], expected), f"image {image}"


def _of_image(torch: Any, inputs: dict[str, Any], direction: str, image: int) -> Any:
    """The reference's result for one image alone."""
    (operation,) = parse_case(_HUGE.format(n=1, direction=direction)).graph().operations
    one = {port: (values if port == "w" else values[image : image + 1]).double() for port, values in inputs.items()}
    return reference(torch, operation, one)
