"""lowdnn's kernels for PyTorch: one line takes over the dispatcher's operations, and another one gives them back.

    import lowdnn.torch

    lowdnn.torch.enable()                # from now on, for CUDA tensors
    train(model)
    print(lowdnn.torch.explain())        # which calls ran on lowdnn, and why the others did not
    lowdnn.torch.disable()               # as it was

A call that lowdnn does not take runs on the kernel that was there before. ``enable(device="emulated")`` takes over
operations on CPU tensors, which run on the emulated device: for tests and trials without a GPU. ``lowdnn guide
pytorch`` has the rest.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib.util import find_spec

if find_spec("torch") is None:
    raise ModuleNotFoundError("lowdnn.torch needs PyTorch: pip install 'lowdnn[torch]'", name="torch")

from lowdnn.torch import ops
from lowdnn.torch.catalog import operation_names
from lowdnn.torch.counts import PathCount, table
from lowdnn.torch.registry import REGISTRY, Enabled

__all__ = [
    "Enabled",
    "PathCount",
    "counts",
    "disable",
    "enable",
    "explain",
    "is_enabled",
    "operation_names",
    "ops",
    "reset",
]


def enable(device: str = "cuda", operations: Iterable[str] | None = None, *, prefer: str = "fastest") -> Enabled:
    """Takes over aten operations in this process, in all threads. Also a context manager: ``with enable(): ...``.

    device: ``cuda`` for CUDA tensors; ``emulated`` for CPU tensors, which are copied to the emulated device and back.
    operations: some of ``operation_names()``; all by default.
    prefer: ``fastest`` leaves calls on a GPU to the native kernel where it is expected to be faster; ``lowdnn`` leaves
    none that lowdnn computes.
    Calls may be nested: an operation is given back when no ``enable`` asks for it any more; the innermost one prefers.
    Raises BadParamError for other names and for none, NotSupportedError without a GPU and for torch before 2.9.
    """
    return REGISTRY.enable(device, operations, prefer)


def disable() -> None:
    """Undoes the last ``enable`` that is still in force. Raises NotInitializedError where there is none."""
    REGISTRY.disable()


def is_enabled() -> bool:
    """Whether any operation is taken over."""
    return REGISTRY.is_enabled


def counts() -> tuple[PathCount, ...]:
    """The calls of taken-over operations so far, by operation and by the reason why the native kernel ran."""
    return REGISTRY.counts()


def explain() -> str:
    """``counts()`` as a table."""
    return table(REGISTRY.counts())


def reset() -> None:
    """Undoes every ``enable``, forgets plans and counts, and gives back what lowdnn has on the devices.

    No other thread may be inside of a call of a taken-over operation then.
    """
    REGISTRY.reset()
