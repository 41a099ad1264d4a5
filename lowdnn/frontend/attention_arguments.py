"""Checks of the arguments of pygraph's attention methods; errors name the caller's own arguments."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from lowdnn.checks import sequence, shown
from lowdnn.frontend.arguments import boolean, integer, member
from lowdnn.frontend.enums import diagonal_alignment
from lowdnn.frontend.graph_tensor import Tensor
from lowdnn.status import AttributeTypeError, BadParamError

BATCH, HEAD, QUERY, KEY = range(4)
#: The last axis of q, k and v.
_DEPTH = 3

#: A function of pygraph and a tensor of scores, or of their gradient, that returns another one.
ScoreModifier = Callable[[Any, Tensor], Tensor]
#: Lengths of queries and of keys, one for each batch.
Lengths = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Argument:
    """The name and the value of an argument whose name differs between methods."""

    name: str
    value: Any


@dataclass(frozen=True)
class Sizes:
    """The dims (batch, heads, queries, keys) of the scores, by those of q, k and v."""

    dims: tuple[int, int, int, int]

    @staticmethod
    def of(method: str, q: Tensor, k: Tensor, v: Tensor) -> Sizes:
        """The sizes of q, k and v, or of pages that hold k and v; ``method`` is named in errors, as below."""
        for label, tensor in {"q": q, "k": k, "v": v}.items():
            if len(tensor.get_dim()) != 4:
                raise BadParamError.at(f"{method}.{label}.dim", expected="4 extents", got=tensor.get_dim())
        batch, heads, queries, _ = q.get_dim()
        return Sizes((batch, heads, queries, k.get_dim()[2]))

    @staticmethod
    def checked(method: str, q: Tensor, k: Tensor, v: Tensor) -> Sizes:
        """The sizes of q, k and v, without pages; raises BadParamError if their dims do not fit each other."""
        of_q, of_k, of_v = (tensor.get_dim() for tensor in (q, k, v))
        for label, dims in {"k": of_k, "v": of_v}.items():
            for axis, kind in ((BATCH, "batches"), (HEAD, "heads")):
                if dims[axis] != of_q[axis] and (not dims[axis] or of_q[axis] % dims[axis]):
                    raise BadParamError.at(
                        f"{method}.{label}.dim[{axis}]",
                        expected=f"a divisor of the {of_q[axis]} {kind} of q",
                        got=dims[axis],
                    )
        if of_k[_DEPTH] != of_q[_DEPTH]:
            raise BadParamError.at(f"{method}.k.dim[{_DEPTH}]", expected=f"{of_q[_DEPTH]}, that of q", got=of_k[_DEPTH])
        if of_v[2] != of_k[2]:
            raise BadParamError.at(f"{method}.v.dim[2]", expected=f"{of_k[2]}, the keys of k", got=of_v[2])
        return Sizes.of(method, q, k, v)

    @property
    def shift(self) -> int:
        """The key at the place of the first query, where places are counted from the last query and key on."""
        return self.dims[KEY] - self.dims[QUERY]


@dataclass(frozen=True)
class Band:
    """A query sees the keys from its place minus ``left`` to its place plus ``right``; None: no bound."""

    left: int | None
    right: int | None
    is_bottom_right: bool

    @property
    def is_mask(self) -> bool:
        return self.left is not None or self.right is not None

    @staticmethod
    def of(
        method: str,
        is_causal: object,
        is_causal_bottom_right: object,
        alignment: diagonal_alignment,
        left_bound: Argument,
        right_bound: Argument,
    ) -> Band:
        """The band of a method's arguments; ``left_bound`` counts the key at the query's place."""
        causal = {
            name: boolean(value, f"{method}.{name}")
            for name, value in (
                ("use_causal_mask", is_causal),
                ("use_causal_mask_bottom_right", is_causal_bottom_right),
            )
        }
        if all(causal.values()):
            raise BadParamError.at(f"{method}.use_causal_mask", expected="one causal mask", got="two")
        left, right = (_bound(method, bound, least) for bound, least in ((left_bound, 1), (right_bound, 0)))
        if any(causal.values()):
            if right is not None:
                raise BadParamError.at(f"{method}.{right_bound.name}", expected="None with a causal mask", got=right)
            right = 0
        chosen = member(diagonal_alignment, alignment, f"{method}.diagonal_alignment")
        is_bottom_right = causal["use_causal_mask_bottom_right"] or chosen is diagonal_alignment.BOTTOM_RIGHT
        return Band(None if left is None else left - 1, right, is_bottom_right)


def one_left_bound(method: str, window: Argument, bound: Argument) -> Argument:
    """The one of two arguments that is given; raises BadParamError if both are."""
    if window.value is not None and bound.value is not None:
        raise BadParamError.at(f"{method}.{window.name}", expected=f"None beside {bound.name}", got=shown(window.value))
    return bound if window.value is None else window


def lengths_of(
    method: str, use_padding: object, queries: Tensor | None, keys: Tensor | None, score_mod: Argument
) -> Lengths | None:
    """The lengths of queries and keys, or None without a padding mask.

    Raises BadParamError for lengths without a mask, and for a mask without both lengths.

    Beside a score modifier, which may read lengths itself, there need be no mask.
    """
    where = f"{method}.use_padding_mask"
    is_padded = boolean(use_padding, where)
    if not is_padded and score_mod.value is not None:
        return None
    if is_padded != (queries is not None and keys is not None):
        given = [name for name, lengths in (("seq_len_q", queries), ("seq_len_kv", keys)) if lengths is not None]
        got = f"{is_padded} with {' and '.join(given) or 'neither'}"
        raise BadParamError.at(where, expected="True with seq_len_q and seq_len_kv, False without", got=got)
    return None if queries is None or keys is None else (queries, keys)


def has_statistics(method: str, is_inference: object, generate_stats: object) -> bool:
    """Whether the method returns statistics: generate_stats says so, or is_inference False."""
    where = f"{method}.is_inference"
    without = None if is_inference is None else boolean(is_inference, where)
    if generate_stats is None:
        return without is False
    if without is not None:
        raise BadParamError.at(where, expected="None where generate_stats is given", got=without)
    return boolean(generate_stats, f"{method}.generate_stats")


def dropout_parts(method: str, dropout: object) -> tuple[Any, ...]:
    """The elements of dropout: (probability, seed, offset), (mask, scale) or (mask, scale, inverse of scale)."""
    return sequence(dropout, f"{method}.dropout", "a probability and two tensors, or of a mask and a scale")


def refuse_ragged(method: str, tensors: Mapping[str, Tensor], lengths: Lengths | None) -> None:
    """Raises BadParamError for a ragged tensor without lengths."""
    for port, tensor in tensors.items():
        if tensor.ragged_offset is not None and lengths is None:
            raise BadParamError.at(f"{method}.use_padding_mask", expected=f"True beside a ragged {port}", got=False)


def refuse_masks(method: str, score_mod: Argument, band: Band, lengths: Lengths | None, has_alibi: object) -> None:
    """Raises BadParamError for a mask beside a score modifier."""
    is_masked = boolean(has_alibi, f"{method}.use_alibi_mask") or band.is_mask or lengths is not None
    if score_mod.value is not None and is_masked:
        raise BadParamError.at(f"{method}.{score_mod.name}", expected="no other mask beside it", got="one")


def refuse_alone(method: str, **needed: tuple[object, str, object]) -> None:
    """Raises BadParamError for an argument that is given without another one that it needs.

    needed: by the name of the argument that is needed: the other's value, the other's name, its own value. None stands
    for an argument that is not given.
    """
    for argument, (value, name, other) in needed.items():
        if value is not None and other is None:
            raise BadParamError.at(f"{method}.{name}", expected=f"None without {argument}", got=shown(value))


def modified_by(method: str, score_mod: Argument, graph: Any, scores: Tensor) -> Tensor:
    """The result of the score modifier for scores or their gradient; ``scores`` themselves without one."""
    if score_mod.value is None:
        return scores
    where = f"{method}.{score_mod.name}"
    if not callable(score_mod.value):
        raise AttributeTypeError.at(where, expected="a function of a graph and a tensor", got=shown(score_mod.value))
    found = score_mod.value(graph, scores)
    if not isinstance(found, Tensor):
        raise AttributeTypeError.at(where, expected="a function that returns a tensor", got=shown(found))
    return found


def _bound(method: str, bound: Argument, least: int) -> int | None:
    return None if bound.value is None else integer(bound.value, f"{method}.{bound.name}", least)
