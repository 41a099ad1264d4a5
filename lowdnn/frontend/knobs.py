"""cudnn.knob: a tunable of an engine with the values that it may take."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

from lowdnn.enums import OWN_NUMBERS, KnobType
from lowdnn.frontend.enums import frontend_knob, knob_type

#: The first type of knobs that cudnn-frontend's own engines have.
FRONTEND_KNOB_TYPE_BASE = 1000


def is_frontend_knob_type(knob_type: knob_type) -> bool:
    """Whether cudnn-frontend's own engines have such knobs; no engine of lowdnn has."""
    return FRONTEND_KNOB_TYPE_BASE <= int(knob_type) < OWN_NUMBERS


@dataclass(frozen=True)
class knob:
    """One tunable of an engine: ``values``, all that it may take, and the evenly spaced range that holds them.

    The range may hold other values too, which ``create_execution_plan`` refuses.
    """

    type: knob_type
    min_value: int
    max_value: int
    stride: int
    values: tuple[int, ...]


def ranged(kind: KnobType, values: tuple[int, ...]) -> knob:
    """The knob of these values."""
    least = min(values)
    return knob(frontend_knob(kind), least, max(values), gcd(*(value - least for value in values)) or 1, values)
