"""Batch, layer, RMS and group norm with their gradients, against torch's own kernels."""

from __future__ import annotations

from typing import Any

import pytest

from tests.torch.support import Face

torch: Any = pytest.importorskip("torch", reason="torch's operations are under test")
F = torch.nn.functional


def batch_names(x: Any, scale: Any, bias: Any, *, training: bool) -> set[str]:
    """The entries that torch calls with running statistics: its own kernels' or cuDNN's, by its own rule."""
    mean, var = torch.zeros_like(scale), torch.ones_like(scale)
    backend = torch._C._select_batch_norm_backend(x, scale, bias, mean, var, training, 1e-5)
    prefix = "cudnn" if backend == torch._C._BatchNormBackend.Cudnn else "native"
    return {f"{prefix}_batch_norm", *([f"{prefix}_batch_norm_backward"] if training else [])}


@pytest.mark.parametrize("shape", [(4, 6), (3, 6, 5), (2, 6, 4, 3)])
def test_batch_norm_trains_and_keeps_statistics(face: Face, shape: tuple[int, ...]) -> None:
    x, scale, bias = (face.reals(*dims, dtype=torch.float32) for dims in (shape, (6,), (6,)))

    def normalised(x: Any, scale: Any, bias: Any) -> Any:
        mean, var = torch.zeros(6, device=x.device), torch.ones(6, device=x.device)
        y = F.batch_norm(x, mean, var, scale, bias, training=True, momentum=0.3)
        return y, mean, var

    face.check(normalised, x, scale, bias, taken=batch_names(x, scale, bias, training=True), tolerance=2e-4)


def test_batch_norm_without_parameters(face: Face) -> None:
    x = face.reals(2, 4, 3, 5, dtype=torch.float64)
    names = ("native_batch_norm", "native_batch_norm_backward")
    face.check(lambda x: F.batch_norm(x, None, None, training=True), x, taken=names)


def test_batch_norm_infers(face: Face) -> None:
    x, scale, bias, mean = (face.reals(*dims, dtype=torch.float32) for dims in ((2, 4, 3, 5), (4,), (4,), (4,)))
    variance = mean.square()

    def normalised(x: Any) -> Any:
        with torch.no_grad():
            return F.batch_norm(x, mean, variance, scale, bias)

    face.check(normalised, x, taken=batch_names(x, scale, bias, training=False))


def test_the_entry_of_any_backend_that_trains(face: Face) -> None:
    x, scale, bias, mean = (face.reals(*dims, dtype=torch.float32) for dims in ((3, 4, 5), (4,), (4,), (4,)))
    variance = mean.square() + 0.5

    def normalised(x: Any, scale: Any, bias: Any) -> Any:
        running = mean.clone(), variance.clone()
        y, saved_mean, saved_root, _ = torch.ops.aten._batch_norm_with_update(x, scale, bias, *running, 0.3, 1e-5)
        return y, saved_mean.detach(), saved_root.detach(), *running

    face.check(normalised, x, scale, bias, taken=["_batch_norm_with_update", "batch_norm_backward"], tolerance=2e-4)


def test_the_entry_of_any_backend_that_infers(face: Face) -> None:
    """PyTorch's own kernel of this entry computes on the CPU alone: it is compared with ``batch_norm``."""
    x, scale, bias, mean = (face.reals(*dims, dtype=torch.float32) for dims in ((3, 4, 5), (4,), (4,), (4,)))
    variance = mean.square() + 0.5
    wanted = F.batch_norm(x, mean, variance, scale, bias, eps=1e-5)
    before = face.counts().get(("_batch_norm_no_update", ""), 0)
    with face.enable():
        y, *_, reserve = torch.ops.aten._batch_norm_no_update(x, scale, bias, mean, variance, 0.3, 1e-5)
    assert face.counts()["_batch_norm_no_update", ""] == before + 1
    torch.testing.assert_close(y, wanted, rtol=2e-4, atol=2e-4)
    assert reserve.numel() == 0


def test_channels_last_and_narrow_types(face: Face) -> None:
    x = face.reals(2, 8, 4, 3, dtype=torch.bfloat16).to(memory_format=torch.channels_last)
    scale, bias = face.reals(8, dtype=torch.float32), face.reals(8, dtype=torch.float32)
    mean, var = torch.zeros(8, device=x.device), torch.ones(8, device=x.device)

    def normalised(x: Any, scale: Any, bias: Any) -> Any:
        return F.batch_norm(
            x, mean.to(scale.dtype, copy=True), var.to(scale.dtype, copy=True), scale, bias, training=True
        )

    names = batch_names(x, scale, bias, training=True)
    face.check(normalised, x, scale, bias, taken=names, tolerance=2e-2, in_double=True)


@pytest.mark.parametrize(
    ("dtype", "has_parameters", "tolerance"),
    [(torch.float32, True, 1e-4), (torch.float32, False, 1e-4), (torch.bfloat16, True, 5e-2)],
)
def test_layer_norm(face: Face, dtype: Any, has_parameters: bool, tolerance: float) -> None:
    x = face.reals(3, 5, 2, 8, dtype=dtype)
    parameters = [face.reals(2, 8, dtype=dtype) for _ in range(2)] if has_parameters else []
    names = ("native_layer_norm", "native_layer_norm_backward")
    face.check(lambda x, *rest: F.layer_norm(x, (2, 8), *rest), x, *parameters, taken=names, tolerance=tolerance)


def test_layer_norm_of_a_strided_matrix(face: Face) -> None:
    x, scale = face.reals(6, 24, dtype=torch.float32), face.reals(8, dtype=torch.float32)
    names = ("native_layer_norm", "native_layer_norm_backward")
    face.check(lambda x, scale: F.layer_norm(x[:, 8:16], (8,), scale), x, scale, taken=names, tolerance=1e-4)


@pytest.mark.parametrize("norm", ["layer", "rms"])
def test_norms_of_transposed_batches(face: Face, norm: str) -> None:
    """Rows that are no single axis in memory: (steps, batch, features) of a tensor whose batch comes first."""
    x, w = face.reals(4, 5, 24, dtype=torch.float32), face.reals(16, dtype=torch.float32)

    def normalised(x: Any, w: Any) -> Any:
        rows = x.transpose(0, 1)[..., 4:20]
        return F.layer_norm(rows, (16,), w) if norm == "layer" else F.rms_norm(rows, (16,), w)

    name = "native_layer_norm" if norm == "layer" else "_fused_rms_norm"
    face.check(normalised, x, w, taken=[name, f"{name}_backward"], tolerance=1e-4)


def test_rows_of_several_axes_need_parameters(face: Face) -> None:
    x = face.reals(4, 5, 16, dtype=torch.float32)
    face.check(lambda x: F.layer_norm(x.transpose(0, 1), (16,)), x, taken=(), tolerance=1e-4)
    reasons = {path[1] for path in face.counts() if path[0] == "native_layer_norm"}
    assert "strides [16, 80, 1] of rows [5, 4, 16], in a norm without scale and bias" in reasons


@pytest.mark.parametrize("names", [("_fused_rms_norm", "_fused_rms_norm_backward"), ()])
def test_rms_norm(face: Face, names: tuple[str, ...]) -> None:
    """Also where lowdnn takes neither: a slice of which rows and columns are no matrix."""
    x, scale = face.reals(5, 4, 16, dtype=torch.float32), face.reals(4, 8, dtype=torch.float32)
    last = slice(None) if names else slice(4, 12)
    dims = [16] if names else [4, 8]
    weight = scale.flatten()[:16] if names else scale
    face.check(lambda x, w: F.rms_norm(x[..., last], dims, w), x, weight, taken=names, tolerance=1e-4)


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_group_norm(face: Face, memory_format: Any) -> None:
    x = face.reals(2, 6, 4, 3, dtype=torch.float32).to(memory_format=memory_format)
    scale, bias = face.reals(6, dtype=torch.float32), face.reals(6, dtype=torch.float32)
    names = ("native_group_norm", "native_group_norm_backward")
    face.check(lambda x, *rest: F.group_norm(x, 3, *rest), x, scale, bias, taken=names, tolerance=1e-4)


def test_cumulative_averages_need_one_plan(face: Face, monkeypatch: pytest.MonkeyPatch) -> None:
    """momentum=None: the factor of the running statistics is another one in each step."""
    from lowdnn.torch import taken

    planned: list[str] = []
    prepare = taken.prepare
    monkeypatch.setattr(
        taken, "prepare", lambda overload, *given: planned.append(overload.name) or prepare(overload, *given)
    )
    native, own = (torch.nn.BatchNorm1d(5, momentum=None).to(face.torch_device) for _ in range(2))
    for _ in range(4):
        x = face.reals(7, 5, dtype=torch.float32)
        native(x)
        with face.enable():
            own(x)
    assert len(planned) == 1
    torch.testing.assert_close(own.running_mean, native.running_mean)
    torch.testing.assert_close(own.running_var, native.running_var)
