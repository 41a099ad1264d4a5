"""Stochastic gradient descent with momentum, one graph for all parameters:

    v = MOMENTUM * v + grad / loss_scale        p = p - rate * v

In mixed precision p is the fp32 master, a copy of it in the type of the activations is written beside it, and p and v
stay as they are where a gradient is not finite.
"""

from __future__ import annotations

from lowdnn.cli.training.loss_scale import LossScale
from lowdnn.cli.training.parameters import Parameters
from lowdnn.cli.training.session import Session

MOMENTUM = 0.8
#: The largest learning rate.
_RATE = 0.3
#: Steps of the linear increase to the largest learning rate.
_WARM_UP = 20


def learning_rate(step: int, steps: int) -> float:
    """The learning rate of step ``step`` of ``steps``: rises to its largest value, then falls to 0; both linearly."""
    return _RATE * min(1.0, (step + 1) / _WARM_UP) * (1 - step / steps)


class Sgd:
    """``update`` applies the gradients that lie in ``parameters``, with the learning rate that was set last."""

    def __init__(self, session: Session, parameters: Parameters, loss_scale: LossScale | None) -> None:
        """``loss_scale``: the factor of the gradients in mixed precision."""
        self._session = session
        self._loss_scale = loss_scale
        self._rate = session.zeros((1, 1, 1))
        self._graph = graph = session.graph("update")
        # In place: each element is read and written by one thread of one kernel.
        masters, momenta, grads = (
            graph.read(array) for array in (parameters.masters, parameters.momenta, parameters.grads)
        )
        rates = graph.read(self._rate)
        if loss_scale is not None:
            grads = graph.div(grads, graph.read(loss_scale.value))
        new_momenta = graph.add(graph.mul(momenta, MOMENTUM), grads)
        new_masters = graph.sub(masters, graph.mul(new_momenta, rates))
        if loss_scale is not None:
            is_finite = graph.read(loss_scale.is_finite)
            new_momenta = graph.binary_select(new_momenta, momenta, is_finite)
            new_masters = graph.binary_select(new_masters, masters, is_finite)
            graph.write(graph.identity(new_masters), parameters.values)
        graph.write(new_momenta, parameters.momenta)
        graph.write(new_masters, parameters.masters)
        graph.built()

    def set_rate(self, rate: float) -> None:
        """The learning rate of the updates from now on, in stream order; it lies in device memory."""
        self._session.set_value(self._rate, rate)

    def update(self) -> None:
        """One update of all parameters."""
        if self._loss_scale is not None:
            self._loss_scale.check()
        self._graph.launch()
        if self._loss_scale is not None:
            self._loss_scale.adapt()
