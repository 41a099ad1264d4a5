"""The generated text of a custom reduction: a golden file for review, and the properties that it depends on."""

from __future__ import annotations

from pathlib import Path

from lowdnn.cases import parse_case
from lowdnn.codegen.reducer import Reducer, generate_reducer, results_text, state_bytes, streams_text
from lowdnn.enums import DataType
from lowdnn.ops.custom_reduction import CustomReduction
from lowdnn.plan import Scalar, ScalarType

GOLDEN = Path(__file__).parent / "golden" / "reducer.cuh"
TYPES = (DataType.HALF, DataType.INT32)


def reducer(line: str = "custom_reduction dims=4x9 axes=1 op=argmax dtype=fp16 compute=fp16") -> Reducer:
    (operation,) = (op for op in parse_case(line).graph().operations if isinstance(op, CustomReduction))
    return generate_reducer(operation)


def text() -> str:
    """The text for the largest element in half precision, and its index."""
    names = [[f"{kind}{i}" for i in range(2)] for kind in ("Stream", "Result")]
    return "\n".join((reducer().text, streams_text(TYPES, names[0]), results_text(TYPES, names[1])))


def test_the_text_is_the_reviewed_one() -> None:
    """After an intended change, ``python -m tests.codegen.test_reducer`` writes the file anew: review what changed."""
    assert text() == GOLDEN.read_text(encoding="utf-8")


def test_initial_values_are_arguments() -> None:
    found = reducer()
    minus_infinity, index = found.arguments.fields[:2]
    assert (minus_infinity, index) == (Scalar(ScalarType.F32, float("-inf")), Scalar(ScalarType.I32, -1))
    assert "inf" not in found.text
    assert reducer("custom_reduction dims=3x2 axes=0 op=argmax dtype=fp16 compute=fp16").text == found.text


def test_a_state_is_aligned_to_its_largest_member() -> None:
    assert state_bytes((DataType.FLOAT,)) == 4
    assert state_bytes((DataType.HALF, DataType.INT8)) == 8
    assert state_bytes((DataType.FLOAT, DataType.DOUBLE)) == 16
    assert state_bytes((DataType.DOUBLE, DataType.FLOAT)) == 16
    assert state_bytes((DataType.FLOAT, DataType.DOUBLE, DataType.FLOAT)) == 24
    assert state_bytes((DataType.FLOAT, DataType.INT32, DataType.INT64, DataType.FLOAT)) == 24


if __name__ == "__main__":
    GOLDEN.write_text(text(), encoding="utf-8")
