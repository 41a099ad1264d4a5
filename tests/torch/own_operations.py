"""Checks of the functions in ``lowdnn.torch.ops`` against float64, and of their registration."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tests.torch.support import Face, run

#: Roundings of the largest value, or of 1, that a result may be off.
ROUNDINGS = 8


def check_values(
    face: Face, call: Callable[..., Any], reference: Callable[..., Any], *leaves: Any, taken: Sequence[str],
    roundings: int = ROUNDINGS, rounded_to: Any = None,
) -> None:  # fmt: skip
    """Fails unless ``call`` and its gradients run on the operations ``taken`` and are close to those of ``reference``.

    reference: computes the same in PyTorch, and is given the leaves in float64.
    rounded_to: the type that intermediates are rounded to; by default each result's own.
    """
    import torch

    wide = [leaf.double() if leaf.is_floating_point() else leaf for leaf in leaves]
    wanted = run(reference, wide)
    before = face.counts()
    with face.enable():
        found = run(call, leaves)
    risen = {key for key, calls in face.counts().items() if calls != before.get(key, 0)}
    own = {name.removeprefix("lowdnn::") for name, reason in risen if not reason and name.startswith("lowdnn::")}
    assert own == set(taken), risen
    assert not [key for key in risen if key[1] and key[0].startswith("lowdnn::")], risen
    assert len(found) == len(wanted)
    for number, (value, expected) in enumerate(zip(found, wanted, strict=True)):
        assert value.shape == expected.shape, number
        error = (value.double() - expected.double()).abs().max().item()
        allowed = roundings * torch.finfo(rounded_to or value.dtype).eps * max(1.0, expected.abs().max().item())
        assert error <= allowed, f"result {number}: off by {error:.3g}, where {allowed:.3g} is allowed"


#: torch's checks of an operation: schema, results without data, gradients, ``torch.compile``.
_CHECKS = ("test_schema", "test_faketensor", "test_autograd_registration", "test_aot_dispatch_dynamic")


def check_registration(face: Face, name: str, *arguments: Any, without: Sequence[str] = ()) -> None:
    """Runs torch's own checks of an operation.  without: names of checks that fail for types of the arguments."""
    import torch

    operation = getattr(torch.ops.lowdnn, name).default
    checks = tuple(name for name in _CHECKS if name not in without)
    torch.library.opcheck(operation, arguments, test_utils=checks)
    with face.enable():
        torch.library.opcheck(operation, arguments, test_utils=tuple(name for name in checks if name in _CHECKS[:2]))


def check_compiled(face: Face, call: Callable[..., Any], *leaves: Any) -> None:
    """``torch.compile`` makes one graph of the call, which computes the same."""
    import torch

    torch._dynamo.reset()
    with face.enable():
        eager = run(call, leaves)
        compiled = run(torch.compile(call, backend="aot_eager", fullgraph=True), leaves)
    for own, other in zip(compiled, eager, strict=True):
        torch.testing.assert_close(own, other)
