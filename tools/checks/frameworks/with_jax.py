"""JAX's cases: values and gradients of jitted functions. Only JAX's own API is used."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import rnn

from tools.checks.frameworks.cases import Case
from tools.checks.frameworks.errors import Results

_TYPES: dict[str, Any] = {"fp32": jnp.float32, "tf32": jnp.float32, "fp16": jnp.float16, "bf16": jnp.bfloat16}
#: A function of the inputs in the type given, computed by cuDNN or by XLA alone.
Function = Callable[..., Any]


class Work:
    """A function with its inputs; results are its output, and the gradients of a weighted sum of the output."""

    def __init__(self, case: Case, _: str) -> None:
        rng = np.random.default_rng(1)
        self._dtype = _TYPES[case.word("precision")]
        function, shapes = _MAKERS[case.work](case)
        self._function = function
        self._arrays = [rng.standard_normal(shape) for shape in shapes]
        self._inputs = [jnp.asarray(array, self._dtype) for array in self._arrays]
        self._step = jax.jit(functools.partial(_with_gradients, functools.partial(function, True)))
        self._last: Any = None

    def results(self) -> Results:
        return _named(self._step(*self._inputs))

    def reference(self) -> Results:
        """The results in float64 on the CPU, of the inputs as they were rounded."""
        with jax.default_device(jax.devices("cpu")[0]), jax.enable_x64(True):
            inputs = [jnp.asarray(np.asarray(array.astype(jnp.float32)), jnp.float64) for array in self._inputs]
            return _named(_with_gradients(functools.partial(self._function, False), *inputs))

    def step(self) -> None:
        self._last = self._step(*self._inputs)

    def wait(self) -> None:
        jax.block_until_ready(self._last)

    def close(self) -> None:
        jax.clear_caches()


def first_call_s() -> float:
    """Time of the first convolution of a process: compiled, all configurations timed, run."""
    x, w = jnp.ones((8, 64, 28, 28), jnp.float16), jnp.ones((64, 64, 3, 3), jnp.float16)
    jax.block_until_ready(x * 2)
    started = time.perf_counter()
    jax.block_until_ready(jax.jit(functools.partial(lax.conv, window_strides=(1, 1), padding="SAME"))(x, w))
    return time.perf_counter() - started


def _with_gradients(function: Function, *inputs: Any) -> tuple[Any, Any]:
    def weighted(*arrays: Any) -> tuple[Any, Any]:
        output = function(*arrays)
        weights = jnp.cos(jnp.arange(output.size, dtype=jnp.float32)).reshape(output.shape)
        kept = output.astype(jnp.promote_types(output.dtype, jnp.float32))
        return (kept * weights.astype(kept.dtype)).mean() * 64, output

    (_, output), gradients = jax.value_and_grad(weighted, tuple(range(len(inputs))), has_aux=True)(*inputs)
    return output, gradients


def _named(found: tuple[Any, Any]) -> Results:
    output, gradients = found
    named = {"output": output, **{f"gradient:input{number}": array for number, array in enumerate(gradients)}}
    return {
        name: np.asarray(array.astype(jnp.promote_types(array.dtype, jnp.float32)), np.float64)
        for name, array in named.items()
    }


def _convolution(case: Case) -> tuple[Function, tuple[tuple[int, ...], ...]]:
    image, filters = case.image()
    spatial = "DHW"[-(len(image) - 2) :]
    is_last = case.word("layout") == "channels_last"
    names = (
        (f"N{spatial}C", f"{spatial}IO", f"N{spatial}C")
        if is_last
        else (f"NC{spatial}", f"OI{spatial}", f"NC{spatial}")
    )
    dims, pad = len(spatial), case.number("pad")

    def function(_: bool, x: Any, w: Any) -> Any:
        return lax.conv_general_dilated(
            x,
            w,
            (case.number("stride", 1),) * dims,
            [(pad, pad)] * dims,
            lhs_dilation=(case.number("spread", 1),) * dims,
            rhs_dilation=(case.number("dilation", 1),) * dims,
            dimension_numbers=names,
            feature_group_count=case.number("groups", 1),
        )

    if is_last:
        image, filters = (image[0], *image[2:], image[1]), (*filters[2:], filters[1], filters[0])
    return function, (image, filters)


def _attention(case: Case) -> tuple[Function, tuple[tuple[int, ...], ...]]:
    n, heads, d = (case.number(name) for name in ("n", "heads", "d"))
    q, kv, shared = case.number("q"), case.number("kv"), case.number("kv_heads", heads)

    def function(is_cudnn: bool, *arrays: Any) -> Any:
        how = "cudnn" if is_cudnn else "xla"
        return jax.nn.dot_product_attention(*arrays, is_causal=bool(case.number("causal")), implementation=how)

    shapes = [(n, q, heads, d), (n, kv, shared, d), (n, kv, shared, d)]
    return function, (*shapes, (n, heads, q, kv)) if case.number("bias") else tuple(shapes)


def _lstm(case: Case) -> tuple[Function, tuple[tuple[int, ...], ...]]:
    """y, h and c, one after the other; rows of y past the end of a sequence are 0."""
    t, b, i, h = (case.number(name) for name in ("t", "b", "i", "h"))
    is_both, layers = bool(case.number("bi")), case.number("layers", 1)
    network = (i, h, layers, 0.0, is_both)
    lengths = jnp.asarray([int(n) for n in case.word("lengths", "x".join([str(t)] * b)).split("x")], jnp.int32)
    precision = lax.Precision.HIGHEST if case.word("precision") == "fp32" else None

    def function(is_cudnn: bool, x: Any, hx: Any, cx: Any, weights: Any) -> Any:
        space = weights * h**-0.5
        if is_cudnn:
            found = rnn.lstm(x, hx, cx, space, lengths, *network, precision)
        else:
            parts = rnn.unpack_lstm_weights(space, i, h, layers, is_both)
            found = rnn.lstm_ref(x, hx, cx, *parts, lengths, *network)
        return jnp.concatenate([array.ravel() for array in found])

    states = (layers * (1 + is_both), b, h)
    count = rnn.get_num_params_in_lstm(i, h, layers, is_both)
    return function, ((b, t, i), states, states, (count,))


_MAKERS: dict[str, Callable[[Case], tuple[Function, tuple[tuple[int, ...], ...]]]] = {
    "conv": _convolution,
    "attention": _attention,
    "lstm": _lstm,
}
