"""A cudnn-frontend program on torch tensors and torch's stream, on a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import lowdnn.frontend as cudnn

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def torch() -> Any:
    return pytest.importorskip("torch", reason="torch is the one thing under test here")


@pytest.fixture
def handle(torch: Any) -> Iterator[cudnn.Handle]:
    created = cudnn.create_handle()
    cudnn.set_stream(handle=created, stream=torch.cuda.current_stream().cuda_stream)
    yield created
    cudnn.destroy_handle(created)


def conv_bias_relu(torch: Any, handle: cudnn.Handle) -> tuple[Any, dict[Any, Any], Any]:
    """(graph, tensors by graph tensor, y) of relu(conv(x, w) + bias) in fp16, channels last."""
    x = torch.randn(4, 16, 14, 14, device="cuda", dtype=torch.float16).to(memory_format=torch.channels_last)
    w = (torch.randn(32, 16, 3, 3, device="cuda", dtype=torch.float16) / 12).to(memory_format=torch.channels_last)
    bias = torch.randn(1, 32, 1, 1, device="cuda", dtype=torch.float16)
    y = torch.empty(4, 32, 14, 14, device="cuda", dtype=torch.float16).to(memory_format=torch.channels_last)
    graph = cudnn.pygraph(
        io_data_type=cudnn.data_type.HALF,
        intermediate_data_type=cudnn.data_type.FLOAT,
        compute_data_type=cudnn.data_type.FLOAT,
        handle=handle,
    )
    image, weight, shift = graph.tensor_like(x), graph.tensor_like(w), graph.tensor_like(bias)
    convolved = graph.conv_fprop(image=image, weight=weight, padding=[1, 1], stride=[1, 1], dilation=[1, 1])
    output = graph.relu(graph.bias(convolved, shift)).set_output(True)
    graph.build([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
    return graph, {image: x, weight: w, shift: bias, output: y}, y


def expected(torch: Any, tensors: dict[Any, Any]) -> Any:
    x, w, bias, _ = (tensor.double() for tensor in tensors.values())
    return torch.relu(convolved(torch, x, w) + bias)


def convolved(torch: Any, x: Any, w: Any) -> Any:
    """By torch's own kernels: in a process that has loaded lowdnn's C library, torch's cuDNN would be that one."""
    with torch.backends.cudnn.flags(enabled=False):
        return torch.conv2d(x, w, padding=1)


def test_torch_tensors_are_taken(torch: Any, handle: cudnn.Handle) -> None:
    graph, tensors, y = conv_bias_relu(torch, handle)
    workspace = torch.empty(max(graph.get_workspace_size(), 1), device="cuda", dtype=torch.uint8)
    graph.execute(tensors, workspace, handle=handle)
    torch.testing.assert_close(y.double(), expected(torch, tensors), rtol=1e-3, atol=1e-3)


def test_execute_is_captured_into_a_torch_graph(torch: Any, handle: cudnn.Handle) -> None:
    graph, tensors, y = conv_bias_relu(torch, handle)
    workspace = torch.empty(max(graph.get_workspace_size(), 1), device="cuda", dtype=torch.uint8)
    graph.execute(tensors, workspace, handle=handle)
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        cudnn.set_stream(handle=handle, stream=torch.cuda.current_stream().cuda_stream)
        graph.execute(tensors, workspace, handle=handle)
    cudnn.set_stream(handle=handle, stream=torch.cuda.current_stream().cuda_stream)
    y.zero_()
    next(iter(tensors.values())).mul_(0.5)
    captured.replay()
    torch.testing.assert_close(y.double(), expected(torch, tensors), rtol=1e-3, atol=1e-3)


def test_a_tensor_of_the_wrong_device_is_refused(torch: Any, handle: cudnn.Handle) -> None:
    graph, tensors, _ = conv_bias_relu(torch, handle)
    image = next(iter(tensors))
    with pytest.raises(ValueError, match="device"):
        graph.execute(tensors | {image: tensors[image].cpu()}, 0, handle=handle)


@pytest.mark.parametrize("kind", ["given", "auto", "of the call"])
def test_a_graph_in_a_block_gives_torch_tensors(torch: Any, handle: cudnn.Handle, kind: str) -> None:
    """The graph runs in the current stream, for tensors that torch differentiates too."""
    x = torch.randn(4, 16, 14, 14, device="cuda", dtype=torch.float16).to(memory_format=torch.channels_last)
    w = (torch.randn(32, 16, 3, 3, device="cuda", dtype=torch.float16) / 12).requires_grad_()
    chosen = {"given": handle, "auto": "auto", "of the call": None}[kind]
    with cudnn.Graph(handle=chosen, io_data_type=torch.float16, compute_data_type=torch.float32) as graph:
        graph.conv_fprop(x, weight=w, padding=[1, 1], name="conv").set_output(True)
    graph.set_io_tuples([x, "conv::weight"], ["conv::Y"])
    options = {"handle": handle} if kind == "of the call" else {}
    side = torch.cuda.Stream() if kind == "auto" else torch.cuda.current_stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        y = graph(x * 2, w, **options)
    torch.cuda.synchronize()
    assert (y.dtype, y.device, y.is_contiguous(memory_format=torch.channels_last)) == (x.dtype, x.device, True)
    wanted = convolved(torch, 2 * x.double(), w.detach().double())
    torch.testing.assert_close(y.double(), wanted, rtol=2e-3, atol=2e-3)
