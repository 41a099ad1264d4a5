"""Stochastic gradient descent with momentum, one graph for all parameters:

    v = MOMENTUM * v + grad / loss_scale        p = p - rate * v

In mixed precision p is the fp32 master, a copy of it in the type of the activations is written beside it, and p and v
stay as they are where a gradient is not finite.
"""

from __future__ import annotations

import lowdnn.frontend as cudnn
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
    """``update`` applies the gradients that lie in ``parameters``."""

    def __init__(self, session: Session, parameters: Parameters, loss_scale: LossScale | None) -> None:
        """``loss_scale``: the factor of the gradients in mixed precision."""
        self._loss_scale = loss_scale
        self._graph = graph = session.graph("update")
        # In place: each element is read and written by one thread of one kernel.
        masters, momenta, grads = (
            graph.read(array) for array in (parameters.masters, parameters.momenta, parameters.grads)
        )
        self._rate = graph.tensor((1, 1, 1), data_type=cudnn.data_type.FLOAT, is_pass_by_value=True, name="rate")
        if loss_scale is not None:
            grads = graph.div(grads, graph.read(loss_scale.value))
        new_momenta = graph.add(graph.mul(momenta, MOMENTUM), grads)
        new_masters = graph.sub(masters, graph.mul(new_momenta, self._rate))
        if loss_scale is not None:
            is_finite = graph.read(loss_scale.is_finite)
            new_momenta = graph.binary_select(new_momenta, momenta, is_finite)
            new_masters = graph.binary_select(new_masters, masters, is_finite)
            graph.write(graph.identity(new_masters), parameters.values)
        graph.write(new_momenta, parameters.momenta)
        graph.write(new_masters, parameters.masters)
        graph.built()

    def update(self, rate: float) -> None:
        """One update of all parameters with the learning rate ``rate``."""
        if self._loss_scale is not None:
            self._loss_scale.check()
        self._graph.launch({self._rate: rate})
        if self._loss_scale is not None:
            self._loss_scale.adapt()
