from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest

from lowdnn.adv import (
    PADDED_IO_ENABLED,
    Dropout,
    RNNAlgo,
    RNNClipMode,
    RNNDataDescriptor,
    RNNDataLayout,
    RNNInputMode,
    RNNMode,
    rnn_set_clip,
)
from lowdnn.enums import DataType, MathType, NanPropagation
from lowdnn.ops.rnn import Clip
from lowdnn.status import AttributeTypeError, BadParamError, UnsupportedDataTypeError
from tests.support.errors import raises
from tests.support.rnn_step import LSTM

PACKED = RNNDataDescriptor(DataType.HALF, RNNDataLayout.SEQ_MAJOR_PACKED, 4, 3, 5, (4, 2, 2))


def test_the_network_of_a_descriptor() -> None:
    rnn = LSTM.network(7, 3, is_training=True)
    assert (rnn.max_length, rnn.batch_size, rnn.projection_size, rnn.pseudo_layers) == (7, 3, 0, 4)
    assert (rnn.dropout_probability, rnn.uses_tf32) == (0.25, True)
    assert LSTM.network(7, 3, is_training=False).dropout_probability == 0
    assert replace(LSTM, proj_size=3).network(7, 3, is_training=True).projection_size == 3
    assert not replace(LSTM, math_type=MathType.FMA_MATH).network(7, 3, is_training=True).uses_tf32


def test_a_clip_counts_for_an_lstm() -> None:
    cut = rnn_set_clip(LSTM, RNNClipMode.MINMAX, -1.0, 2.0, NanPropagation.NOT_PROPAGATE_NAN)
    assert cut.network(1, 1, is_training=True).clip == Clip(-1.0, 2.0, propagates_nan=False)
    assert replace(cut, cell_mode=RNNMode.GRU).network(1, 1, is_training=True).clip is None
    assert rnn_set_clip(cut, RNNClipMode.NONE, 0, 0) == LSTM
    with raises(BadParamError, "rnn_set_clip.rclip", expected="a finite number", got="inf"):
        rnn_set_clip(LSTM, RNNClipMode.MINMAX, -1.0, inf)
    with raises(BadParamError, "rnn.clip", expected="lower <= upper", got="2.0 and 1.0"):
        rnn_set_clip(LSTM, RNNClipMode.MINMAX, 2.0, 1.0)


def test_what_a_network_checks() -> None:
    with raises(BadParamError, "rnn_descriptor.algo", expected="an algorithm", got="COUNT"):
        replace(LSTM, algo=RNNAlgo.COUNT)
    with raises(UnsupportedDataTypeError, "rnn_descriptor.data_type", expected="FLOAT, HALF", got="INT8"):
        replace(LSTM, data_type=DataType.INT8)
    with raises(UnsupportedDataTypeError, "rnn_descriptor.math_prec", expected="FLOAT for FLOAT", got="HALF"):
        replace(LSTM, math_prec=DataType.HALF)
    with raises(BadParamError, "rnn_descriptor.aux_flags", expected="0 or 1", got="2"):
        replace(LSTM, aux_flags=2 * PADDED_IO_ENABLED)
    with raises(BadParamError, "rnn_descriptor.proj_size", expected="1 to the hidden size 8", got="9"):
        replace(LSTM, proj_size=9)
    with raises(BadParamError, "rnn.projection_size", expected="none in a GRU", got="4"):
        replace(LSTM, cell_mode=RNNMode.GRU, proj_size=4)
    with raises(BadParamError, "rnn.num_layers", expected="1 to 2147483647", got="0"):
        replace(LSTM, num_layers=0)
    with raises(BadParamError, "rnn.input_size", expected="the hidden size 8 with SKIP_INPUT", got="5"):
        replace(LSTM, input_mode=RNNInputMode.SKIP_INPUT)
    with raises(BadParamError, "Dropout.dropout", expected="0 to 1", got="1.5"):
        Dropout(1.5)


def test_packed_and_padded_sequences() -> None:
    assert (PACKED.row_count, PACKED.is_packed, PACKED.is_full) == (8, True, False)
    assert replace(PACKED, seq_length_array=(4, 4, 4)).is_full
    padded = replace(PACKED, layout=RNNDataLayout.BATCH_MAJOR_UNPACKED)
    assert not replace(padded, seq_length_array=(1, 3, 2)).is_full
    assert not replace(padded, seq_length_array=None).is_full


@pytest.mark.parametrize(
    ("lengths", "place", "expected", "got"),
    [
        ((4, 2, 3), "[2]", "at most the 2 before it where packed", "3"),
        ((4, 2, 0), "[2]", "1 to 4", "0"),
        ((5, 2, 1), "[0]", "1 to 4", "5"),
        ((4, 2), "", "3 lengths", "2"),
        (None, "", "lengths where packed", "none"),
    ],
)
def test_lengths_that_no_sequences_have(lengths: tuple[int, ...] | None, place: str, expected: str, got: str) -> None:
    with raises(BadParamError, f"rnn_data_descriptor.seq_length_array{place}", expected=expected, got=got):
        replace(PACKED, seq_length_array=lengths)


def test_what_sequences_check() -> None:
    with raises(UnsupportedDataTypeError, "rnn_data_descriptor.data_type", expected="FLOAT, HALF", got="INT32"):
        replace(PACKED, data_type=DataType.INT32)
    for field in ("max_seq_length", "batch_size", "vector_size"):
        with raises(BadParamError, f"rnn_data_descriptor.{field}", expected="1 to 2147483647", got="0"):
            replace(PACKED, **{field: 0})


def test_numbers_and_names_are_no_members() -> None:
    """Comparisons with ``is`` would pass over them."""
    for field in ("algo", "cell_mode", "bias_mode", "dir_mode", "input_mode", "data_type", "math_prec", "math_type"):
        kind = type(getattr(LSTM, field)).__name__
        for value in (int(getattr(LSTM, field)), getattr(LSTM, field).name):
            with raises(AttributeTypeError, f"rnn_descriptor.{field}", expected=f"of type {kind}", got=repr(value)):
                replace(LSTM, **{field: value})
    for field in ("data_type", "layout"):
        with raises(AttributeTypeError, f"rnn_data_descriptor.{field}", expected="a value of type", got="0"):
            replace(PACKED, **{field: 0})
    for number in (8.0, "8", None, True):
        with raises(AttributeTypeError, "rnn_descriptor.hidden_size", expected="an integer", got=repr(number)):
            replace(LSTM, hidden_size=number)
        with raises(AttributeTypeError, "rnn_data_descriptor.seq_length_array[1]", expected="an integer", got=""):
            replace(PACKED, seq_length_array=(4, number, 1))
    with raises(AttributeTypeError, "rnn_data_descriptor.seq_length_array", expected="a tuple or None", got="[4, 2]"):
        replace(PACKED, seq_length_array=[4, 2])
    with raises(AttributeTypeError, "rnn_descriptor.dropout_desc", expected="of type Dropout or None", got="0.5"):
        replace(LSTM, dropout_desc=0.5)
    with raises(AttributeTypeError, "Dropout.states", expected="an integer", got="None"):
        Dropout(0.5, None)  # type: ignore[arg-type]
    with raises(AttributeTypeError, "rnn_set_clip.clip_mode", expected="of type RNNClipMode", got="1"):
        rnn_set_clip(LSTM, 1, -1.0, 1.0)  # type: ignore[arg-type]
    with raises(AttributeTypeError, "rnn_set_clip.lclip", expected="a number or an integer", got="'-1'"):
        rnn_set_clip(LSTM, RNNClipMode.MINMAX, "-1", 1.0)  # type: ignore[arg-type]
