"""PyTorch's own samples of the operations that ``lowdnn.torch`` takes over: ``python -m tools.checks.torch_samples``.

For each operation and type, every sample of torch's OpInfo database runs three times: natively, in fp64, and with
lowdnn. Results and gradients have to have the shapes, strides and types of the native ones, and of torch's fake
kernels. They may be twice as far from those in fp64 as the native ones, and a few roundings; of fp8 products, a few
roundings from the native ones. One sample
of each operation and type also runs under ``torch.compile``. A line for each operation has how many samples ran on
lowdnn, partly on it, or natively, and how many failed; behind it stand the reasons and the failures. The exit code is 1
where one failed.

On a GPU the samples are CUDA tensors, whose products in fp32 are not rounded to TF32; elsewhere, or with
``--device emulated``, they run on the emulated device.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing._internal.common_methods_invocations import op_db

import lowdnn.torch
from tests.support.shards import shard

#: The names of OpInfo entries that end in operations which lowdnn takes over.
NAMES = (
    *(f"nn.functional.conv{kind}{rank}d" for kind in ("", "_transpose") for rank in (1, 2, 3)),
    *("mm", "bmm", "addmm", "baddbmm", "matmul", "nn.functional.linear", "nn.functional.bilinear"),
    *("nn.functional.batch_norm", "nn.functional.instance_norm", "native_batch_norm", "_native_batch_norm_legit"),
    *("nn.functional.layer_norm", "native_layer_norm", "nn.functional.rms_norm", "nn.functional.group_norm"),
    *("softmax", "log_softmax", "nn.functional.softmin", "nn.functional.cross_entropy"),
    *(f"nn.functional.{kind}_pool{rank}d" for kind in ("max", "avg") for rank in (1, 2, 3)),
    *(f"nn.functional.adaptive_{kind}_pool{rank}d" for kind in ("max", "avg") for rank in (2, 3)),
    *("nn.functional.interpolate", "nn.functional.upsample_nearest", "nn.functional.upsample_bilinear"),
    *("nn.functional.scaled_dot_product_attention", "torch._scaled_mm", "torch._scaled_mm_v2"),
)
_FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
TYPES = (*_FLOATS, torch.float8_e4m3fn, torch.float8_e5m2)
#: Roundings of the largest value, or of 1, by which results may be further away than twice the native ones. Gradients
#: are sums of many terms of about 1, which may cancel.
_ROUNDINGS = 16

Sample = tuple[Callable[..., Any], Any]


@dataclass
class Outcome:
    """The samples of one operation, by what became of them, and why."""

    counts: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)

    def line(self, name: str) -> str:
        parts = ("lowdnn", "partly", "native", "refused", "not run", "compiled", "failed")
        return f"{name:<45}" + "  ".join(f"{part} {self.counts[part]:>4}" for part in parts)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "emulated"), default=None)
    parser.add_argument("--only", nargs="*", default=(), help="parts of OpInfo names")
    parser.add_argument("--types", nargs="*", default=[], help="names of types, such as float32")
    parser.add_argument("--most", type=int, default=0, help="samples of an operation and type, drawn from all")
    parser.add_argument(
        "--shard", type=shard, default=(1, 1), metavar="I/N", help="every N-th sample, from the I-th on"
    )
    parser.add_argument("--seconds", type=float, default=float("inf"), help="no further sample begins after these")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**31))
    given = parser.parse_args()
    device = given.device or ("cuda" if torch.cuda.is_available() else "emulated")
    print(f"device {device}, torch {torch.__version__}, seed {given.seed}")
    warnings.simplefilter("ignore")
    given.end = time.monotonic() + given.seconds
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        total = _check_operations(given, device)
    print(Outcome(total).line("all"))
    return 1 if total["failed"] else 0


def _check_operations(given: argparse.Namespace, device: str) -> Counter[str]:
    """Prints the outcome of each operation; returns the counts of all."""
    total = Counter[str]()
    for name, entries in _operations(given.only).items():
        if time.monotonic() > given.end:
            print(f"{name:<45}not run: no time left")
            continue
        outcome = Outcome()
        for entry in entries:
            for dtype in _types(entry, device, given.types):
                _check_type(entry, dtype, device, given, outcome)
        print(outcome.line(name), flush=True)
        for reason, count in outcome.reasons.most_common():
            print(f"    {count:>4}  {reason}")
        for failure in outcome.failures:
            print(f"    FAILED {failure}", flush=True)
        total += outcome.counts
    return total


def _operations(only: Iterable[str]) -> dict[str, list[Any]]:
    """The entries of the database by name, variants together."""
    found: dict[str, list[Any]] = {}
    for entry in op_db:
        if entry.name in NAMES and (not only or any(part in entry.name for part in only)):
            found.setdefault(entry.name, []).append(entry)
    return found


def _types(entry: Any, device: str, names: Iterable[str]) -> Iterator[Any]:
    supported = entry.supported_dtypes(_kind(device))
    for dtype in TYPES:
        if dtype in supported and (not names or str(dtype).removeprefix("torch.") in names):
            yield dtype


def _check_type(entry: Any, dtype: Any, device: str, given: argparse.Namespace, outcome: Outcome) -> None:
    torch.manual_seed(given.seed)
    differentiates = dtype in entry.supported_backward_dtypes(_kind(device))
    samples = list(entry.sample_inputs(_kind(device), dtype, requires_grad=differentiates))
    if given.most and len(samples) > given.most:
        samples = random.Random(given.seed).sample(samples, given.most)
    own, shards = given.shard
    for number, sample in enumerate(samples):
        if number % shards != own - 1:
            continue
        if time.monotonic() > given.end:
            outcome.counts["not run"] += 1
            continue
        where = f"{entry.name}{entry.variant_test_name and ' ' + entry.variant_test_name} {dtype} {_shown(sample)}"
        try:
            _check_sample(entry, sample, device, outcome)
            if number == 0:
                _check_compiled(entry, sample, device, outcome)
        except Exception as error:  # whatever goes wrong belongs to this sample
            outcome.counts["failed"] += 1
            outcome.failures.append(f"{where}: {type(error).__name__} {error}"[:600])


def _check_sample(entry: Any, sample: Any, device: str, outcome: Outcome) -> None:
    try:
        native = _run(entry, sample)
    except Exception:  # torch itself does not take the sample
        outcome.counts["refused"] += 1
        return
    exact = _exact(entry, sample, native)
    before = lowdnn.torch.counts()
    with lowdnn.torch.enable(device, prefer="lowdnn"):
        own = _run(entry, sample)
    paths = _risen(before, lowdnn.torch.counts())
    _compare(own, native, exact)
    _compare_fake(entry, sample, own)
    reasons = [reason for _, reason in paths if reason]
    took = any(not reason for _, reason in paths)
    outcome.counts["partly" if took and reasons else "lowdnn" if took else "native"] += 1
    outcome.reasons.update(reasons or ([] if took else ["no operation that is taken over"]))


def _exact(entry: Any, sample: Any, native: list[Any]) -> list[Any]:
    """The results in fp64; of operations that take fp8 alone, the native ones."""
    if sample.input.dtype in _FLOATS:
        return _run(entry, sample.transform(_as_double))
    return [result.double() if result.is_floating_point() else result for result in native]


def _check_compiled(entry: Any, sample: Any, device: str, outcome: Outcome) -> None:
    plain = sample.transform(lambda value: value.detach() if isinstance(value, torch.Tensor) else value)

    def compiled() -> Any:
        torch._dynamo.reset()
        function = torch.compile(lambda x, args, kwargs: entry(x, *args, **kwargs), backend="aot_eager")
        with torch.no_grad():
            return function(plain.input, plain.args, plain.kwargs)

    try:
        native = compiled()
    except Exception as error:  # torch itself does not compile the sample
        outcome.reasons[f"not compiled natively either: {type(error).__name__}"] += 1
        return
    with lowdnn.torch.enable(device, prefer="lowdnn"):
        own = compiled()
    _compare(_tensors(own), _tensors(native), _exact(entry, plain, _tensors(native)))
    outcome.counts["compiled"] += 1


def _run(entry: Any, sample: Any) -> list[Any]:
    """The results and, where they have any, the gradients of the inputs."""
    fresh = sample.transform(_fresh)
    results = _tensors(entry(fresh.input, *fresh.args, **fresh.kwargs))
    results = _tensors(sample.output_process_fn_grad(results)) if len(results) > 1 else results
    leaves = [leaf for leaf in _tensors((fresh.input, fresh.args, fresh.kwargs)) if leaf.requires_grad]
    floats = [result for result in results if result.requires_grad]
    if not leaves or not floats:
        return results
    total = sum((result.double() * _weights(result)).sum() for result in floats)
    gradients = torch.autograd.grad(total, leaves, allow_unused=True)
    return [result.detach() for result in results] + [found for found in gradients if found is not None]


def _weights(result: Any) -> Any:
    places = torch.arange(result.numel(), device=result.device, dtype=torch.float64)
    return (0.7 * places).sin().reshape(result.shape)


def _compare(own: list[Any], native: list[Any], exact: list[Any]) -> None:
    assert len(own) == len(native) == len(exact), f"{len(own)} results instead of {len(native)}"
    for number, (found, other, wanted) in enumerate(zip(own, native, exact, strict=True)):
        facts, expected = _facts(found), _facts(other)
        assert facts == expected, f"result {number}: {facts} instead of {expected}"
        if not found.dtype.is_floating_point:
            assert torch.equal(found, other), f"result {number}: other integers"
            continue
        native_values, own_values = other.double(), found.double()
        assert torch.equal(own_values.isnan(), wanted.isnan()), f"result {number}: other NaNs"
        is_number = wanted.isfinite() & native_values.isfinite()
        errors = [
            (values - wanted).abs()[is_number].max().item() if is_number.any() else 0.0
            for values in (own_values, native_values)
        ]
        # In fp64 the reference has errors of its own.
        roundings = _ROUNDINGS * (4 if found.dtype == torch.float64 else 1)
        largest = max(1.0, wanted.abs()[is_number].max().item() if is_number.any() else 0.0)
        allowed = 2 * errors[1] + roundings * torch.finfo(found.dtype).eps * largest
        assert errors[0] <= allowed, f"result {number}: off by {errors[0]:.3g}, where {allowed:.3g} is allowed"


def _compare_fake(entry: Any, sample: Any, own: list[Any]) -> None:
    """Compares the results with what torch expects without computing."""
    with torch.no_grad(), FakeTensorMode() as mode:
        fake = sample.transform(lambda value: mode.from_tensor(value) if isinstance(value, torch.Tensor) else value)
        expected = _tensors(entry(fake.input, *fake.args, **fake.kwargs))
    for number, (found, wanted) in enumerate(zip(own, expected, strict=False)):
        assert _facts(found) == _facts(wanted), f"result {number}: {_facts(found)}, where {_facts(wanted)} is announced"


def _facts(tensor: Any) -> tuple[Any, ...]:
    """Shape, strides and type; strides along axes of one element say nothing."""
    strides = tuple(step for step, extent in zip(tensor.stride(), tensor.shape, strict=True) if extent > 1)
    return tuple(tensor.shape), strides if tensor.numel() else (), tensor.dtype


def _tensors(values: Any) -> list[Any]:
    leaves, _ = torch.utils._pytree.tree_flatten(values)
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]


def _fresh(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    # Strides belong to the sample: a copy has them, too, where they do not overlap.
    return value.detach().clone(memory_format=torch.preserve_format).requires_grad_(value.requires_grad)


def _as_double(value: Any) -> Any:
    if isinstance(value, torch.Tensor) and value.dtype.is_floating_point:
        return value.detach().double().requires_grad_(value.requires_grad)
    return torch.float64 if value in _FLOATS[:3] else value


def _risen(before: Iterable[Any], after: Iterable[Any]) -> list[tuple[str, str]]:
    known = {(path.operation, path.reason): path.calls for path in before}
    return [
        (path.operation, path.reason) for path in after if path.calls != known.get((path.operation, path.reason), 0)
    ]


def _kind(device: str) -> str:
    return "cpu" if device == "emulated" else "cuda"


def _shown(sample: Any) -> str:
    def text(value: Any) -> Any:
        return tuple(value.shape) if isinstance(value, torch.Tensor) else value

    arguments = [text(sample.input), *map(text, sample.args)]
    return f"{arguments} { {name: text(value) for name, value in sample.kwargs.items()} }"


if __name__ == "__main__":
    sys.exit(main())
