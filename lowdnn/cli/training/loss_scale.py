"""The dynamic loss scale of mixed precision: it keeps the gradients of activations inside the range of fp16.

The loss is multiplied by it before the backward pass, the parameters' gradients are divided by it after. Where one of
them is infinite or NaN, the update is left out and the scale halved; after a number of updates it is doubled. All of it
happens on the device: the host does not wait to know.
Source: P. Micikevicius et al., 2018, "Mixed Precision Training", section 3.2.
"""

from __future__ import annotations

from math import inf

import numpy as np

import lowdnn.frontend as cudnn
from lowdnn.cli.training.parameters import Parameters
from lowdnn.cli.training.session import BoundGraph, Session
from lowdnn.distributed.communicator import ReduceOp


class LossScale:
    """``value``: the scale.  ``is_finite``: 1 where ``check`` found every gradient finite, otherwise 0.

    ``updates``: the updates since the scale was last changed.
    All are (1, 1, 1) in fp32.
    """

    def __init__(
        self, session: Session, parameters: Parameters, first: float = 2.0**16, growth_interval: int = 2000
    ) -> None:
        """``growth_interval``: updates with finite gradients after which the scale is doubled."""
        self.value = session.on_device(np.full((1, 1, 1), first))
        self.is_finite = session.zeros((1, 1, 1))
        self._session = session
        self.updates = session.zeros((1, 1, 1))
        self._check = self._check_graph(session, parameters)
        self._adapt = self._adapt_graph(session, growth_interval)

    def check(self) -> None:
        """Looks at the gradients, before an update; all ranks agree on what they found."""
        self._check.launch()
        communicator = self._session.split.communicator
        if communicator is not None:
            stream = self._session.handle.borrowed_stream()
            communicator.all_reduce(self.is_finite, self.is_finite, stream=stream, op=ReduceOp.MIN)

    def adapt(self) -> None:
        """Chooses the scale of the next step, after an update."""
        self._adapt.launch()

    def _check_graph(self, session: Session, parameters: Parameters) -> BoundGraph:
        graph = session.graph("gradient check")
        largest = graph.reduction(graph.read(parameters.grads), cudnn.reduction_mode.AMAX).set_dim((1, 1, 1))
        # The maximum propagates NaN, and NaN < infinity is false, so a NaN counts as not finite.
        graph.write(graph.cmp_lt(largest, inf), self.is_finite)
        return graph.built()

    def _adapt_graph(self, session: Session, growth_interval: int) -> BoundGraph:
        """In place: each element is read and written by one thread of one kernel."""
        graph = session.graph("loss scale")
        is_finite, scale = graph.read(self.is_finite), graph.read(self.value)
        updates = graph.mul(graph.add(graph.read(self.updates), 1.0), is_finite)
        grows = graph.cmp_ge(updates, growth_interval)
        grown = graph.mul(scale, graph.add(grows, 1.0))
        graph.write(graph.binary_select(grown, graph.mul(scale, 0.5), is_finite), self.value)
        graph.write(graph.mul(updates, graph.logical_not(grows)), self.updates)
        return graph.built()
