"""PyTorch's cases: a step of each, its results and its time. Only PyTorch's own API is used."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from tools.checks.frameworks.cases import Case
from tools.checks.frameworks.errors import Results
from tools.checks.frameworks.networks import CLASSES, RESNET3D, RESNET50, UNet, resnet
from tools.checks.frameworks.recurrent import MODULES, recurrent

_TYPES = {
    "fp64": torch.float64,
    "fp32": torch.float32,
    "tf32": torch.float32,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
}
_LAYOUTS = {2: torch.channels_last, 3: torch.channels_last_3d}
#: Gradients of fp16 would be lost without it.
_SCALES = {"fp16": "128"}
#: Results with dropout are averaged over as many draws. The mean of attention is its result without.
_DRAWS = 256


class Work:
    """A module with its inputs: forward, a scalar of the output, and backward.

    results: one step from the initial state.  reference: one step in float64 without cuDNN.  step: with an update of
    the parameters, or of the inputs of a module that has none; it does not wait.
    """

    def __init__(self, case: Case, device: str) -> None:
        _configure(case)
        self._case, self._device = case, device
        self._precision = case.word("precision", "fp32")
        self._scale = float(case.word("scale", _SCALES.get(self._precision, "1")))
        torch.manual_seed(1)
        module, inputs = _MAKERS.get(case.work, _network)(case)
        dtype = _TYPES[self._precision] if case.work not in NETWORKS else torch.float32
        self._initial = {name: value.clone() for name, value in module.state_dict().items()}
        self._module = module.to(device, dtype)
        self._inputs = [tensor.to(device, dtype) for tensor in inputs]
        if case.word("layout"):
            layout = _LAYOUTS[case.number("dims", 3 if case.work == "resnet3d" else 2)]
            self._module = self._module.to(memory_format=layout)
            self._inputs = [tensor.contiguous(memory_format=layout) for tensor in self._inputs]
        if case.number("eval"):
            self._module.eval()
        self._called = torch.compile(self._module) if case.number("compile") else self._module
        leaves = [*self._module.parameters()] or [tensor.requires_grad_() for tensor in self._inputs]
        self._optimizer = torch.optim.SGD(leaves, lr=1e-6, momentum=0.9)

    def results(self) -> Results:
        self._module.load_state_dict(self._initial)
        draws = _DRAWS if self._case.word("dropout") else 1
        return self._mean(draws, lambda: self._once(self._called, self._inputs, self._autocast()))

    def reference(self) -> Results:
        self._module.load_state_dict(self._initial)
        dtype = next(iter(self._inputs)).dtype
        inputs = [tensor.detach().double() for tensor in self._inputs]
        draws = _DRAWS if self._case.word("dropout") and self._case.work in MODULES else 1
        exact = self._module.double()
        with torch.backends.cudnn.flags(enabled=False, deterministic=False, benchmark=False, allow_tf32=False):
            found = self._mean(draws, lambda: self._once(exact, inputs, contextlib.nullcontext()))
        self._module.to(dtype)
        return found

    def step(self) -> None:
        self._optimizer.zero_grad(set_to_none=True)
        with self._autocast():
            loss = _loss(self._called(*self._inputs)) * self._scale
        loss.backward()
        self._optimizer.step()

    def wait(self) -> None:
        if self._device == "cuda":
            torch.cuda.synchronize()

    def close(self) -> None:
        torch.cuda.empty_cache()

    @staticmethod
    def _mean(draws: int, draw: Callable[[], dict[str, Any]]) -> Results:
        sums: dict[str, Any] = {}
        for _ in range(draws):
            for name, value in draw().items():
                sums[name] = value.double() + sums.get(name, 0.0)
        return {name: (value / draws).cpu().numpy() for name, value in sums.items()}

    def _once(self, module: Callable[..., torch.Tensor], inputs: list[torch.Tensor], autocast: Any) -> dict[str, Any]:
        leaves = [tensor.detach().clone().requires_grad_() for tensor in inputs]
        self._module.zero_grad(set_to_none=True)
        with autocast:
            output = module(*leaves)
            loss = _loss(output)
        (loss * self._scale).backward()
        gradients = {f"gradient:input{number}": leaf.grad for number, leaf in enumerate(leaves)}
        gradients |= {f"gradient:{name}": parameter.grad for name, parameter in self._module.named_parameters()}
        scaled = {name: value.detach().double() / self._scale for name, value in gradients.items() if value is not None}
        return {"loss": loss.detach().double(), "output": output.detach().double(), **scaled}

    def _autocast(self) -> Any:
        if self._case.work in NETWORKS and self._precision in ("fp16", "bf16"):
            return torch.autocast(self._device, dtype=_TYPES[self._precision])
        return contextlib.nullcontext()


def _configure(case: Case) -> None:
    torch.backends.cudnn.allow_tf32 = case.word("precision") == "tf32"
    torch.backends.cudnn.benchmark = bool(case.number("benchmark"))
    torch.backends.cudnn.deterministic = bool(case.number("deterministic"))
    torch.backends.cuda.matmul.allow_tf32 = False


def _loss(output: torch.Tensor) -> torch.Tensor:
    """A scalar that gives each element of the output a gradient of its own."""
    if output.dim() == 2 and output.shape[1] == CLASSES:
        return F.cross_entropy(output.float() if output.dtype != torch.float64 else output, _labels(output))
    weights = torch.linspace(-1.0, 1.0, output.numel(), device=output.device, dtype=torch.float64).cos()
    kept = output if output.dtype == torch.float64 else output.float()
    return (kept.flatten() * weights.to(kept.dtype)).mean()


def _labels(output: torch.Tensor) -> torch.Tensor:
    return torch.arange(output.shape[0], device=output.device) * 7 % CLASSES


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "resnet50": lambda: resnet(2, RESNET50),
    "resnet3d": lambda: resnet(3, RESNET3D),
    "unet": UNet,
}

Made = tuple[nn.Module, list[torch.Tensor]]


def _network(case: Case) -> Made:
    size = (case.number("size"),) * (3 if case.work == "resnet3d" else 2)
    return NETWORKS[case.work](), [torch.randn(case.number("n"), 3, *size)]


class _Convolution(nn.Module):
    def __init__(self, case: Case) -> None:
        super().__init__()
        image, filters = case.image()
        names = ("stride", "padding", "dilation", "groups")
        defaults = {"stride": 1, "pad": 0, "dilation": 1, "groups": 1}
        self._settings = dict(zip(names, [case.number(*item) for item in defaults.items()], strict=True))
        is_transposed = bool(case.number("transposed"))
        self._function = getattr(F, f"conv{'_transpose' if is_transposed else ''}{len(image) - 2}d")
        self.weight = nn.Parameter(torch.randn(filters) / filters[1] ** 0.5)
        self.bias = nn.Parameter(torch.randn(case.number("k")))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self._function(x, self.weight, self.bias, **self._settings)


def _convolution(case: Case) -> Made:
    return _Convolution(case), [torch.randn(case.image()[0])]


def _batch_norm(case: Case) -> Made:
    dims, c = case.number("dims", 2), case.number("c")
    module = {2: nn.BatchNorm2d, 3: nn.BatchNorm3d}[dims](c)
    nn.init.normal_(module.weight)
    nn.init.normal_(module.bias)
    return module, [torch.randn(case.number("n"), c, *(case.number("size"),) * dims) + 0.5]


class _Attention(nn.Module):
    def __init__(self, case: Case) -> None:
        super().__init__()
        self._options = {"is_causal": bool(case.number("causal")), "enable_gqa": bool(case.number("kv_heads"))}
        self._dropout = float(case.word("dropout", "0"))
        mask = torch.rand(case.number("q"), case.number("kv")) < 0.7
        self._mask = torch.zeros(mask.shape).masked_fill(~mask, -10.0) if case.number("mask") else None

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        is_exact = q.dtype == torch.float64
        mask = None if self._mask is None else self._mask.to(q.device, q.dtype)
        dropout = 0.0 if is_exact else self._dropout
        with sdpa_kernel(SDPBackend.MATH if is_exact else SDPBackend.CUDNN_ATTENTION):
            return F.scaled_dot_product_attention(q, k, v, mask, dropout, **self._options)


def _attention(case: Case) -> Made:
    n, heads, d = (case.number(name) for name in ("n", "heads", "d"))
    shared = case.number("kv_heads", heads)
    shapes = ((n, heads, case.number("q"), d), *((n, shared, case.number("kv"), d),) * 2)
    return _Attention(case), [torch.randn(shape) for shape in shapes]


_MAKERS: dict[str, Callable[[Case], Made]] = {
    "conv": _convolution,
    "batchnorm": _batch_norm,
    "attention": _attention,
    **dict.fromkeys(MODULES, recurrent),
}
