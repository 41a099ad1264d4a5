"""The references of recurrent networks: the walk over layers, directions and steps. Arrays are (T, B, elements)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lowdnn.ops import philox
from lowdnn.ops.base import Values
from lowdnn.ops.rng import Rng
from lowdnn.ops.rnn import Rnn
from lowdnn.ops.rnn_cells import Arithmetic, Cell, Weights, cell_of
from lowdnn.ops.rnn_saved import saved_dims
from lowdnn.ops.rnn_sequences import before, is_row
from lowdnn.ops.rnn_weights import WeightSpace

Array = NDArray[Any]


@dataclass(frozen=True)
class Walk:
    """A network on given values, by the ports of its operations."""

    rnn: Rnn
    arithmetic: Arithmetic
    values: Values

    @property
    def rows(self) -> NDArray[np.bool_]:
        """Whether there is a row, (T, B)."""
        return is_row(self.rnn, self.values.get("seq_lengths"))

    def forward(self, x: Array) -> dict[str, Array]:
        """y as (T, B, D * S), hy, cy, and all that is saved, from rows x."""
        rnn, rows = self.rnn, self.rows
        found = {name: np.zeros(dims) for name, dims in saved_dims(rnn).items()}
        hy, cy, inputs = self.state("hx"), self.state("cx"), x
        for layer in range(rnn.num_layers):
            outputs = np.zeros((*rows.shape, rnn.output_size))
            for direction in range(rnn.directions):
                place = layer * rnn.directions + direction
                h, c, cell = hy[place], cy[place], self.cell(place)
                of_input, columns = cell.of_input(inputs), self._columns(direction)
                for step in self._steps(direction):
                    at, exists = (place, step), rows[step, :, np.newaxis]
                    new = cell.step(of_input[step], h, c)
                    h, c = np.where(exists, new.h, h), np.where(exists, new.c, c)
                    outputs[step, :, columns] = np.where(exists, new.h, 0)
                    saved = {"gates": new.gates, "cells": new.c, "unprojected": new.unprojected}
                    for name in saved.keys() & found.keys():
                        found[name][at] = np.where(exists, saved[name], 0)
                hy[place], cy[place] = h, c
            if layer < rnn.num_layers - 1:
                found["outputs"][layer], inputs = outputs, self._dropped(outputs, layer)
        return found | {"y": outputs, "hy": hy, "cy": cy}

    def backward_data(self, dy: Array, y: Array | None) -> dict[str, Array]:
        """dx as (T, B, I), dhx, dcx, dgates and dprojected, from rows dy and, of a GRU, y."""
        rnn, rows = self.rnn, self.rows
        found = {name: np.zeros(dims) for name, dims in saved_dims(rnn).items() if name in ("dgates", "dprojected")}
        dhx, dcx, doutputs = self.state("dhy"), self.state("dcy"), dy
        for layer in reversed(range(rnn.num_layers)):
            dinputs = np.zeros((*rows.shape, rnn.size_into(layer)))
            for direction in range(rnn.directions):
                place, columns = layer * rnn.directions + direction, self._columns(direction)
                cell, dh, dc = self.cell(place), dhx[place], dcx[place]
                gates, (c, c_before) = self.values["gates"][place], self._cells(place, direction)
                h_before = self._states(layer, direction, y) if rnn.is_gru else np.zeros((*rows.shape, 1))
                for step in reversed(list(self._steps(direction))):
                    exists = rows[step, :, np.newaxis]
                    sums = dh + doutputs[step, :, columns]
                    new = cell.backward(gates[step], sums, dc, h_before[step], c[step], c_before[step])
                    dh, dc = np.where(exists, new.h, dh), np.where(exists, new.c, dc)
                    found["dgates"][place, step] = np.where(exists, new.gates, 0)
                    if rnn.projection_size:
                        found["dprojected"][place, step] = np.where(exists, new.projected, 0)
                dhx[place], dcx[place] = dh, dc
                dinputs += cell.input_gradient(found["dgates"][place])
            doutputs = self._dropped(dinputs, layer - 1) if layer else dinputs
        return found | {"dx": doutputs, "dhx": dhx, "dcx": dcx}

    def backward_weights(self, x: Array, y: Array) -> Array:
        """dw from rows x and y."""
        rnn, space = self.rnn, WeightSpace(self.rnn)
        dw = np.zeros(space.element_count)
        for place, regions in enumerate(space.layers):
            layer, direction = divmod(place, rnn.directions)
            dgates, states = self.values["dgates"][place], self._states(layer, direction, y)
            of_input, recurrent = self._gate_sums(dgates)
            inputs = x if layer == 0 else self._dropped(self.values["outputs"][layer - 1], layer - 1)
            gradients = {
                regions.w: self._sum_of_products(of_input, inputs),
                regions.r: self._recurrent_gradient(dgates, recurrent, states),
                regions.input_bias: of_input.sum(axis=(0, 1)),
                regions.recurrent_bias: recurrent.sum(axis=(0, 1)),
            }
            if regions.projection is not None:
                saved = (self.values[name][place] for name in ("dprojected", "unprojected"))
                gradients[regions.projection] = self._sum_of_products(*saved)
            for region, gradient in gradients.items():
                if region is not None:
                    dw[region.offset : region.end] = gradient.reshape(-1)
        return dw

    def state(self, port: str) -> Array:
        """The states at ``port``, (L * D, B, S or H); 0 where there are none."""
        rnn = self.rnn
        if port in self.values:
            return np.array(self.values[port], np.float64)
        size = rnn.state_size if port in ("hx", "dhy") else rnn.hidden_size
        return np.zeros((rnn.pseudo_layers, rnn.batch_size, size))

    def cell(self, place: int) -> Cell:
        """The cell of a pseudo-layer."""
        weights = Weights.of(self.values["w"], WeightSpace(self.rnn).layers[place])
        return cell_of(self.rnn, weights, self.arithmetic)

    def kept(self, layer: int) -> Array:
        """The factors of the outputs of ``layer``, (T, B, D * S); 1 where none are dropped."""
        rnn = self.rnn
        dims = (rnn.max_length, rnn.batch_size, rnn.output_size)
        if not rnn.drops:
            return np.ones(dims)
        seed, offset = (int(self.values[port].item()) for port in ("dropout_seed", "dropout_offset"))
        count = int(np.prod(dims))
        indices = np.arange(layer * count, (layer + 1) * count, dtype=np.uint64)
        words = philox.words(seed, offset, indices).reshape(dims)
        return (words < Rng(probability=1 - rnn.dropout_probability).threshold) * rnn.dropout_scale

    def _dropped(self, outputs: Array, layer: int) -> Array:
        """``outputs`` of ``layer``, or their gradient, as its dropout stores them; they are stored themselves."""
        return self.arithmetic.stored(self.arithmetic.stored(outputs) * self.kept(layer))

    def _columns(self, direction: int) -> slice:
        """A direction's states in a row of outputs."""
        size = self.rnn.state_size
        return slice(direction * size, (direction + 1) * size)

    def _steps(self, direction: int) -> Iterable[int]:
        """The steps in the order of a direction."""
        steps = range(self.rnn.max_length)
        return reversed(steps) if direction else steps

    def _states(self, layer: int, direction: int, y: Array | None) -> Array:
        """h before each step, (T, B, S); 0 where there is no row."""
        rnn, rows = self.rnn, self.rows
        outputs = y if layer == rnn.num_layers - 1 else self.values["outputs"][layer]
        if outputs is None:
            raise KeyError("y")
        first = self.state("hx")[layer * rnn.directions + direction]
        found = before(outputs[..., self._columns(direction)], first, rows, bool(direction))
        return np.where(rows[..., np.newaxis], found, 0)

    def _cells(self, place: int, direction: int) -> tuple[Array, Array]:
        """c behind and before each step, (T, B, H) each."""
        if not self.rnn.is_lstm:
            nothing = np.zeros((*self.rows.shape, 1))
            return nothing, nothing
        cells = self.values["cells"][place]
        return cells, before(cells, self.state("cx")[place], self.rows, bool(direction))

    def _gate_sums(self, dgates: Array) -> tuple[Array, Array]:
        """Gradients of W x + bW and of R h + bR, (T, B, G * H) each."""
        rnn = self.rnn
        of_input = dgates[..., : rnn.gates * rnn.hidden_size]
        if not (rnn.is_gru and rnn.reset_after):
            return of_input, of_input
        others = of_input[..., : 2 * rnn.hidden_size]
        return of_input, np.concatenate([others, dgates[..., 3 * rnn.hidden_size :]], axis=-1)

    def _recurrent_gradient(self, dgates: Array, sums: Array, states: Array) -> Array:
        """The gradient of R, (G * H, S)."""
        rnn, size = self.rnn, self.rnn.hidden_size
        if rnn.reset_after:
            return self._sum_of_products(sums, states)
        reset = dgates[..., 3 * size :]
        parts = ((sums[..., : 2 * size], states), (sums[..., 2 * size :], reset))
        return np.concatenate([self._sum_of_products(*part) for part in parts])

    def _sum_of_products(self, gradients: Array, values: Array) -> Array:
        """The sum of products over all rows: (elements of ``gradients``, elements of ``values``)."""
        flat = (array.reshape(-1, array.shape[-1]).T for array in (gradients, values))
        return self.arithmetic.product(*flat)
