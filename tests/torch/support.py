"""Calls of torch on both paths, native and taken over, and their comparison."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

Call = Callable[..., Any]


@dataclass(frozen=True)
class Face:
    """``lowdnn.torch`` over one kind of memory."""

    device: str

    @property
    def torch_device(self) -> str:
        return "cpu" if self.device == "emulated" else "cuda"

    def enable(self, operations: Sequence[str] | None = None) -> Any:
        import lowdnn.torch

        # Calls of tests are small, so that most would stay native.
        return lowdnn.torch.enable(self.device, operations, prefer="lowdnn")

    def counts(self) -> dict[tuple[str, str], int]:
        import lowdnn.torch

        return {(path.operation, path.reason): path.calls for path in lowdnn.torch.counts()}

    def reset(self) -> None:
        import lowdnn.torch

        lowdnn.torch.reset()

    def integers(self, *shape: int, dtype: Any, most: int = 2) -> Any:
        """Whole numbers from -most to most: sums of their products are exact, whatever their order."""
        import torch

        return torch.randint(-most, most + 1, shape, device=self.torch_device).to(dtype)

    def reals(self, *shape: int, dtype: Any) -> Any:
        import torch

        return torch.randn(shape, device=self.torch_device, dtype=torch.float64).to(dtype)

    def check(
        self,
        call: Call,
        *leaves: Any,
        taken: Sequence[str],
        exact: bool = False,
        tolerance: float | None = None,
        in_double: bool = False,
    ) -> None:
        """Fails unless the results of ``call`` and the gradients of all ``leaves`` are those of the native kernels.

        Shapes, strides and types have to be equal, and exactly the operations in ``taken`` to have run on lowdnn.
        exact: numbers have to be equal, too; otherwise they may differ by ``tolerance``, or as torch's own tests have
        it.  in_double: the native kernels compute in float64, since their roundings in narrow types are coarse.
        """
        import torch

        native = run(call, leaves)
        if in_double:
            precise = run(call, [leaf.double() for leaf in leaves])
            native = [torch.empty_like(other).copy_(one) for one, other in zip(precise, native, strict=True)]
        before = self.counts()
        with self.enable():
            found = run(call, leaves)
        after = self.counts()
        risen = {key for key, calls in after.items() if calls != before.get(key, 0)}
        assert {name for name, reason in risen if not reason} == set(taken), risen
        assert len(found) == len(native)
        for number, (own, other) in enumerate(zip(found, native, strict=True)):
            _check(own, other, exact, tolerance, f"result {number}")


def run(call: Call, leaves: Sequence[Any]) -> list[Any]:
    """The results of a call and, where they have any, the gradients of the leaves."""
    import torch

    inputs = [leaf.detach().clone(memory_format=torch.preserve_format).requires_grad_(leaf.dtype.is_floating_point)
              for leaf in leaves]  # fmt: skip
    results = call(*inputs)
    outputs = [results] if isinstance(results, torch.Tensor) else [*results]
    floats = [output for output in outputs if output.requires_grad]
    if not floats:
        return outputs
    weights = [
        torch.arange(output.numel(), device=output.device).remainder(3).reshape(output.shape) for output in floats
    ]
    total = sum((output.double() * weight).sum() for output, weight in zip(floats, weights, strict=True))
    needed = [leaf for leaf in inputs if leaf.requires_grad]
    gradients = torch.autograd.grad(total, needed, allow_unused=True)
    return [output.detach() for output in outputs] + [found for found in gradients if found is not None]


def _check(own: Any, other: Any, exact: bool, tolerance: float | None, where: str) -> None:
    import torch

    facts = [(tuple(tensor.shape), tensor.stride(), tensor.dtype) for tensor in (own, other)]
    assert facts[0] == facts[1], where
    if exact:
        assert torch.equal(own, other), where
    elif tolerance is not None:
        torch.testing.assert_close(own, other, rtol=tolerance, atol=tolerance, msg=lambda text: f"{where}: {text}")
    else:
        torch.testing.assert_close(own, other, msg=lambda text: f"{where}: {text}")
