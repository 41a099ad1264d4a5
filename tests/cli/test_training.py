"""The demo's training: every gradient of a step against NumPy, the optimiser, the data."""

from __future__ import annotations

from itertools import count
from typing import Any

import numpy as np
import pytest
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

import lowdnn.frontend as cudnn
from lowdnn.cli import digits
from lowdnn.cli.training.inference import logits
from lowdnn.cli.training.layers import EPSILON
from lowdnn.cli.training.loss_scale import LossScale
from lowdnn.cli.training.network import Network, initial_parameters
from lowdnn.cli.training.parameters import Parameters
from lowdnn.cli.training.session import Session
from lowdnn.cli.training.sgd import Sgd, learning_rate
from lowdnn.enums import DataType
from tests.support.data import fresh_seed

BATCH = 4
#: Error of the loss and the gradients in fp32, relative to the float64 reference.
TOLERANCE = 5e-6
#: Least distance of a ReLU or maximum from a tie: a step of ``slope`` moves its inputs by less.
LEAST_TIE = 3e-5
#: Error of the loss and the logits in fp16.
HALF_TOLERANCE = 4e-3
#: The axes that a batch norm takes its statistics over.
PIXELS = (0, 2, 3)
Array = NDArray[Any]
Moments = tuple[Array, Array]


def drawn(seed: int) -> tuple[dict[str, Array], Array, Array]:
    """Parameters, a batch of images, and its targets."""
    rng = np.random.default_rng(seed)
    initial = initial_parameters(rng)
    # With the zeros that a training begins with, no gradient would reach the layers before them.
    initial["linear.weight"] = rng.normal(0, 0.1, initial["linear.weight"].shape)
    return initial, rng.random((BATCH, 1, 8, 8)), rng.dirichlet(np.ones(10), BATCH)


def smooth_seed() -> int:
    """A fresh seed of a network in which no ReLU or maximum flips within the steps of ``slope`` and fp32 roundings."""
    return next(seed for seed in count(fresh_seed()) if nearest_tie(*drawn(seed)[:2]) > LEAST_TIE)


def prepared(session: Session, seed: int) -> tuple[Network, dict[str, Array], Array, Array]:
    """A network with a batch of random images and targets in place, its parameters, the images, the targets."""
    initial, images, targets = drawn(seed)
    network = Network(session, BATCH, initial)
    session.copy(session.on_device(images, session.activation_type), network.images.arrays[0])
    session.copy(session.on_device(targets[None]), network.targets.arrays[0])
    return network, initial, images, targets


def convolved(x: Array, w: Array) -> Array:
    windows = sliding_window_view(np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1))), (3, 3), (2, 3))
    return np.einsum("nchwrs,kcrs->nkhw", windows, w, optimize=True)


def pooled(x: Array) -> Array:
    n, c, h, w = x.shape
    return x.reshape(n, c, h // 2, 2, w // 2, 2).max((3, 5))


def reference_logits(given: dict[str, Array], images: Array, running: list[Moments] | None = None) -> Array:
    """In float64; ``running``: statistics instead of the batch's own."""
    x = images
    for number in (1, 2):
        y = convolved(x, given[f"conv{number}.weight"])
        mean, variance = running[number - 1] if running else (y.mean(PIXELS), y.var(PIXELS))
        y = (y - mean.reshape(1, -1, 1, 1)) / np.sqrt(variance.reshape(1, -1, 1, 1) + EPSILON)
        x = pooled(np.maximum(y * given[f"norm{number}.scale"] + given[f"norm{number}.bias"], 0))
    rows = x.transpose(0, 2, 3, 1).reshape(len(x), -1)
    return np.asarray(rows @ given["linear.weight"][0] + given["linear.bias"][0])


def reference_loss(given: dict[str, Array], images: Array, targets: Array) -> float:
    y = reference_logits(given, images)
    log_shares = y - np.log(np.exp(y).sum(1, keepdims=True))
    return float(-(targets * log_shares).sum() / len(images))


def nearest_tie(given: dict[str, Array], images: Array) -> float:
    """The least distance of a ReLU's input from 0, and of a positive maximum from its neighbours in the window."""
    x, found = images, []
    for number in (1, 2):
        y = convolved(x, given[f"conv{number}.weight"])
        y = (y - y.mean(PIXELS, keepdims=True)) / np.sqrt(y.var(PIXELS, keepdims=True) + EPSILON)
        y = y * given[f"norm{number}.scale"].reshape(1, -1, 1, 1) + given[f"norm{number}.bias"].reshape(1, -1, 1, 1)
        n, c, h, w = y.shape
        windows = np.sort(y.reshape(n, c, h // 2, 2, w // 2, 2).transpose(0, 1, 2, 4, 3, 5).reshape(n, c, -1, 4))
        gaps = windows[..., 3] - windows[..., 2]
        found += [np.abs(y).min(), gaps[windows[..., 3] > 0].min(initial=np.inf)]
        x = pooled(np.maximum(y, 0))
    return float(min(found))


def slope(given: dict[str, Array], name: str, direction: Array, images: Array, targets: Array) -> float:
    """The derivative of the loss as one parameter moves along ``direction``: a central difference."""
    step = 1e-6
    ahead, behind = (
        reference_loss(given | {name: given[name] + sign * step * direction}, images, targets) for sign in (1, -1)
    )
    return (ahead - behind) / (2 * step)


def check_gradients(session: Session, network: Network, given: dict[str, Array], images: Array, targets: Array) -> None:
    """The loss, and its slopes along random directions of each parameter, relative to the gradient's norm."""
    assert network.loss() == pytest.approx(reference_loss(given, images, targets), rel=TOLERANCE)
    rng = np.random.default_rng(0)
    for name, initial in given.items():
        grad = session.read_back(network.parameters[name].grad)
        for direction in rng.normal(size=(4, *initial.shape)):
            error = (grad * direction).sum() - slope(given, name, direction, images, targets)
            assert abs(error) <= TOLERANCE * np.linalg.norm(grad), name


def test_a_step_in_fp32(handle: cudnn.Handle) -> None:
    """Gradients and the update, without the rounding to TF32, with which ReLUs and maxima near ties would go astray."""
    rate = 0.05
    with Session(handle, mode=cudnn.heur_mode.FALLBACK) as session:
        network, given, images, targets = prepared(session, smooth_seed())
        network.forward()
        network.backward()
        check_gradients(session, network, given, images, targets)
        network.set_rate(rate)
        network.update()
        for name, initial in given.items():
            updated, grad = (session.read_back(getattr(network.parameters[name], part)) for part in ("master", "grad"))
            np.testing.assert_allclose(updated, initial - rate * grad, rtol=1e-6, atol=1e-7, err_msg=name)


def test_training_in_mixed_precision(handle: cudnn.Handle) -> None:
    """A loss that falls on one batch, the copies of the updated parameters, and what inference then gives."""
    with Session(handle, DataType.HALF) as session:
        network, given, images, targets = prepared(session, fresh_seed())
        losses = []
        network.set_rate(0.05)
        for _ in range(3):
            network.train_step()
            losses.append(network.loss())
        assert losses[0] == pytest.approx(reference_loss(given, images, targets), rel=HALF_TOLERANCE)
        assert max(losses[1:]) < losses[0]
        parameters = network.parameters
        masters, values = (session.read_back(array) for array in (parameters.masters, parameters.values))
        np.testing.assert_array_equal(values, masters.astype(np.float16))
        updated = {name: session.read_back(parameters[name].master) for name in given}
        running = [(session.read_back(one.mean), session.read_back(one.variance)) for one in network.running]
        expected = reference_logits(updated, images, running)
        np.testing.assert_allclose(
            logits(session, network, images[:, 0]), expected, atol=HALF_TOLERANCE * np.abs(expected).max()
        )


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
def test_an_update_is_left_out_where_a_gradient_is_not_finite(handle: cudnn.Handle, bad: float) -> None:
    """The loss scale is halved then, and doubled after as many good updates as its interval says."""
    rng = np.random.default_rng(fresh_seed())
    with Session(handle, DataType.HALF) as session:
        parameters = Parameters(session, {"w": rng.normal(size=(1, 1, 20))})
        scale = LossScale(session, parameters, first=1024.0, growth_interval=2)
        sgd = Sgd(session, parameters, scale)
        sgd.set_rate(0.5)
        scales = []
        for worst in (1.0, bad, 1.0, 1.0, 1.0):
            grads = rng.normal(size=(1, 1, 24))
            grads[0, 0, 7] = worst
            session.copy(session.on_device(grads), parameters.grads)
            before = [session.read_back(array) for array in (parameters.masters, parameters.momenta)]
            sgd.update()
            after = [session.read_back(array) for array in (parameters.masters, parameters.momenta)]
            assert np.array_equal(before, after) == (not np.isfinite(worst))
            assert np.isfinite(after).all()
            scales.append(session.read_back(scale.value).item())
        assert scales == [1024.0, 512.0, 512.0, 1024.0, 1024.0]


def test_the_learning_rate_rises_then_falls() -> None:
    rates = [learning_rate(step, 80) for step in range(80)]
    peak = rates.index(max(rates))
    assert 0 < peak < 20
    assert rates == sorted(rates[:peak]) + sorted(rates[peak:], reverse=True)
    assert 0 < rates[-1] < 0.02 * max(rates)


def test_digits() -> None:
    training, held_out = digits.load()
    assert (training.count, held_out.count) == (1438, 359)
    for part in (training, held_out):
        assert part.images.shape == (part.count, 8, 8)
        assert (part.images.min(), part.images.max()) == (0, 1)
        assert set(part.labels) == set(range(10))
