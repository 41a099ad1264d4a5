"""Attention in a graph: two matrix products with a softmax between them,

    o = w v,    w = weights(softmax(s)),    s = scores(q k^T)

with pointwise operations where the formula has ``scores`` (scale, bias, masks) and ``weights`` (dropout) and behind o.
The largest magnitudes of the softmax and of one value behind the second product may be stored beside.
q is (B, H, S_q, D), the second operand of the first product (B, H_k, D, S_kv), v (B, H_v, S_kv, D_v). That operand may
be a transpose of k (B, H_k, S_kv, D). k and v may be loads of a paged cache.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from lowdnn.enums import DataType, ReduceTensorOp
from lowdnn.graph.band_pattern import Band, band_of
from lowdnn.graph.graph import OperationGraph
from lowdnn.graph.pattern import PointwiseDag, dag_of, refuse_index_space
from lowdnn.graph.ragged_pattern import padded
from lowdnn.graph.reduction_pattern import ancestors
from lowdnn.graph.sink_pattern import Sink, sink_of
from lowdnn.ops.base import Operation, inputs_of, outputs_of
from lowdnn.ops.block_mask import BlockMask
from lowdnn.ops.matmul import MatmulOperation
from lowdnn.ops.paged_cache_load import PagedCacheLoad
from lowdnn.ops.pointwise import PointwiseOperation
from lowdnn.ops.ragged import RaggedMove
from lowdnn.ops.reduction import ReductionOperation
from lowdnn.ops.rng import RngOperation
from lowdnn.ops.softmax import Softmax
from lowdnn.ops.subgraph import are_products
from lowdnn.ops.tensor import Tensor
from lowdnn.ops.transpose import Transpose

#: Permutation of k's last two axes.
_EXCHANGED = (0, 1, 3, 2)


@dataclass(frozen=True)
class Attention:
    """See the module's docstring.

    k: (B, H_k, D, S_kv), as it lies in memory.  k_load, v_load: the loads of k and v if they lie in pages; their
    sequences have the band's lengths.  ragged: the loads and stores of packed tensors, by uid of these; the tensors
    themselves are described as padded.
    softmax: the softmax, with the sink as it lies in memory.  cuts_sink: whether queries past their length have none.
    scores: operations after the first product, before the masks of ``band``, which put minus infinity in place of
    scores, and the softmax.  weights: operations between the softmax and the second product, linear in the weights.
    output: operations after the second product.
    amax_s, amax_o: the largest magnitudes of the softmax's output and of a value of ``output``, where they are stored.
    """

    first: MatmulOperation
    softmax: Softmax
    second: MatmulOperation
    k: Tensor
    scores: PointwiseDag
    weights: PointwiseDag
    output: PointwiseDag
    band: Band
    k_load: PagedCacheLoad | None = None
    v_load: PagedCacheLoad | None = None
    amax_s: ReductionOperation | None = None
    amax_o: ReductionOperation | None = None
    cuts_sink: bool = False
    ragged: Mapping[int, RaggedMove] = field(default_factory=dict)


def match_attention(graph: OperationGraph) -> Attention | str:
    """The graph as one attention, or why it is not one."""
    return graph.derive(_match_padded)


def _match_padded(graph: OperationGraph) -> Attention | str:
    found = padded(graph)
    if isinstance(found, str):
        return found
    attention = _match(found.graph)
    return attention if isinstance(attention, str) else replace(attention, ragged=found.moves)


def _match(graph: OperationGraph) -> Attention | str:
    products = [op for op in graph.operations if isinstance(op, MatmulOperation)]
    softmaxes = [op for op in graph.operations if isinstance(op, Softmax)]
    if len(products) != 2 or len(softmaxes) != 1:
        got = f"{len(products)} and {len(softmaxes)}"
        return f"operations: expected two MatmulOperation and one Softmax between them, got {got}"
    (first, second), softmax = products, softmaxes[0]
    k, transposed = _keys(graph, first)
    sink = None if softmax.sink is None else sink_of(graph, softmax.sink)
    refused = _refuse_core(graph, first, k, softmax, sink, second)
    if refused:
        return refused
    loads = tuple(_load(graph, tensor) for tensor in (k, second.b))
    largest = [op for op in graph.operations if isinstance(op, ReductionOperation)]
    apart = (transposed, *loads, *largest, *(sink.operations if sink else ()))
    before, between, behind = _parts(graph, softmax, second, apart)
    randoms = tuple(op for op in between if isinstance(op, RngOperation))
    written = {second.c.uid, *(tensor.uid for op in behind for tensor in outputs_of(op).values())}
    refused = _refuse_parts(first, softmax, second, before, between, behind)
    refused = refused or _refuse_largest(graph, largest, softmax.y, written)
    if refused:
        return refused
    stored = [op for op in largest if not op.y.is_virtual]
    dims = first.c.dims
    score_steps = tuple(op for op in before if isinstance(op, PointwiseOperation | BlockMask))
    weight_steps, output_steps = (
        tuple(op for op in part if isinstance(op, PointwiseOperation)) for part in (between, behind)
    )
    band = band_of(score_steps, softmax.x)
    refused = _refuse_masks(graph, band, sink, loads)
    scores = refused or _needed(score_steps, first.c, band.scores)
    if isinstance(scores, str):
        return scores
    return Attention(
        first,
        softmax if sink is None else replace(softmax, sink=sink.tensor),
        second,
        k,
        scores=dag_of(dims, scores, anchor=first.c, result=band.scores),
        weights=dag_of(dims, weight_steps, anchor=softmax.y, result=second.a, randoms=randoms),
        output=dag_of(second.c.dims, output_steps, anchor=second.c),
        band=band,
        k_load=loads[0],
        v_load=loads[1],
        amax_s=next((op for op in stored if op.x.uid == softmax.y.uid), None),
        amax_o=next((op for op in stored if op.x.uid in written), None),
        cuts_sink=sink is not None and sink.lengths is not None,
    )


def _keys(graph: OperationGraph, first: MatmulOperation) -> tuple[Tensor, Transpose | None]:
    """(the first product's second operand as it lies in memory, the operation that transposes it)."""
    producer = graph.producer(first.b)
    is_virtual = isinstance(producer, Transpose) and producer.y.is_virtual and len(graph.consumers(producer.y)) == 1
    if not isinstance(producer, Transpose) or not is_virtual or producer.permutation != _EXCHANGED:
        return first.b, None
    x = producer.x
    if x.data_type is not first.b.data_type:
        return first.b, None
    dims, strides = (tuple(values[axis] for axis in _EXCHANGED) for values in (x.dims, x.strides))
    return replace(x, dims=dims, strides=strides), producer


def _load(graph: OperationGraph, tensor: Tensor) -> PagedCacheLoad | None:
    """The operation that loads ``tensor``, and nothing else, from pages."""
    producer = graph.producer(tensor)
    is_alone = tensor.is_virtual and len(graph.consumers(tensor)) == 1
    return producer if isinstance(producer, PagedCacheLoad) and is_alone else None


def _in_memory(graph: OperationGraph, tensor: Tensor) -> tuple[Tensor, ...]:
    """The tensors in memory that ``tensor`` stands for: itself, or the pages that it is loaded from."""
    load = _load(graph, tensor)
    return (tensor,) if load is None else (load.container, load.page_table)


def _refuse_masks(
    graph: OperationGraph, band: Band, sink: Sink | None, loads: tuple[PagedCacheLoad | None, ...]
) -> str:
    """Why a kernel cannot mask the scores and the sink as ``band`` and ``sink`` say, or an empty string."""
    for tensor in (band.blocks, band.lengths, band.query_lengths):
        if tensor is not None and graph.producer(tensor) is not None:
            return f"{tensor.label}: expected a mask or lengths that are an input of the graph, got another tensor"
    cut = None if sink is None else sink.lengths
    if cut is not None and (band.query_lengths is None or band.query_lengths.uid != cut.uid):
        return f"{cut.label}: expected a mask of the scores of queries whose sink it masks, got none"
    for load in filter(None, loads):
        if band.lengths is None or band.lengths.uid != load.sequence.uid:
            return f"{load.sequence.label}: expected a mask of the keys beyond this length of a paged cache, got none"
    return ""


def _refuse_core(
    graph: OperationGraph,
    first: MatmulOperation,
    k: Tensor,
    softmax: Softmax,
    sink: Sink | None,
    second: MatmulOperation,
) -> str:
    """Why the three are no attention, or an empty string."""
    operands = {"first product's a": first.a, "first product's b": k, "second product's b": second.b}
    read = [(name, part) for name, tensor in operands.items() for part in _in_memory(graph, tensor)]
    for name, given in (*read, ("softmax's sink", None if sink is None else sink.tensor)):
        if given is not None and (graph.producer(given) is not None or given.is_scalar_value):
            return f"{name}: expected a graph input in device memory, got {given.label}"
    if first.a.rank != 4:
        return f"{first.a.label}.dims: expected (batch, heads, length, size), got {list(first.a.dims)}"
    if softmax.is_log or softmax.normalised_axes != (3,):
        return f"softmax: expected plain, over the last axis, got {softmax.normalised_axes}"
    if softmax.masked_is_nan:
        return "softmax: expected 0 for a masked row, got NaN"
    order = ancestors(graph, softmax), ancestors(graph, second)
    if id(first) not in order[0] or id(softmax) not in order[1] or first.c.dims != softmax.x.dims:
        return "operations: expected a softmax of the first product's scores before the second product's a"
    for tensor in (first.c, softmax.x, softmax.y, second.a):
        if not tensor.is_virtual:
            return f"{tensor.label}: expected a virtual tensor, got one that is stored"
    for port, tensor in outputs_of(softmax).items():
        if port != "y" and (tensor.is_virtual or graph.consumers(tensor)):
            return f"softmax.{port}: expected an output that is stored and not read, got {tensor.label}"
    if softmax.compute_type is not DataType.FLOAT:
        return f"softmax: expected FLOAT, got {softmax.compute_type.name}"
    return ""


def _parts(
    graph: OperationGraph, softmax: Softmax, second: MatmulOperation, loading: tuple[Operation | None, ...]
) -> tuple[list[Operation], list[Operation], list[Operation]]:
    """The pointwise operations in three groups: those that the softmax depends on, the others that the second product
    depends on, and the rest. Operations of ``loading`` are left out."""
    to_softmax, to_second = ancestors(graph, softmax), ancestors(graph, second)
    others = [op for op in graph.operations if not isinstance(op, MatmulOperation | Softmax) and op not in loading]
    before = [op for op in others if id(op) in to_softmax]
    between = [op for op in others if id(op) in to_second and id(op) not in to_softmax]
    return before, between, [op for op in others if id(op) not in to_second]


def _refuse_parts(
    first: MatmulOperation,
    softmax: Softmax,
    second: MatmulOperation,
    before: list[Operation],
    between: list[Operation],
    behind: list[Operation],
) -> str:
    """Why the other operations cannot be computed with the products, or an empty string."""
    for op in (*before, *behind):
        if not isinstance(op, PointwiseOperation) and not (isinstance(op, BlockMask) and op in before):
            return f"operations: expected pointwise operations around the softmax, got {type(op).__name__}"
    for op in between:
        if not isinstance(op, PointwiseOperation | RngOperation):
            return f"operations: expected pointwise operations and random numbers, got {type(op).__name__}"
    made = {tensor.uid for op in between for tensor in outputs_of(op).values()}
    for op in between:
        if isinstance(op, RngOperation) and not made.isdisjoint(tensor.uid for tensor in inputs_of(op).values()):
            return "operations: expected a seed and an offset that are inputs of the graph, got others"
    for op in (*before, *between):
        for tensor in outputs_of(op).values():
            if not tensor.is_virtual:
                return f"{tensor.label}: expected a virtual tensor, got one that is stored"
    written = {softmax.x.uid, *(tensor.uid for op in before for tensor in outputs_of(op).values()), first.c.uid}
    for op in between:
        if not written.isdisjoint(tensor.uid for tensor in inputs_of(op).values()):
            return "operations: expected none behind the softmax that read scores, got one"
    written |= {softmax.y.uid, *(tensor.uid for op in between for tensor in outputs_of(op).values())}
    for op in behind:
        if not written.isdisjoint(tensor.uid for tensor in inputs_of(op).values()):
            return "operations: expected none behind the second product that read scores or weights, got one"
    steps = [op for op in between if isinstance(op, PointwiseOperation | RngOperation)]
    if not are_products(softmax.y, steps):
        # Rows are divided by their sum last, so what is done to the weights before must let a factor through.
        return "operations: expected products of the softmax's output with other tensors, got another operation"
    return (
        refuse_index_space([op for op in before if isinstance(op, PointwiseOperation)], first.c.dims)
        or refuse_index_space(steps, first.c.dims)
        or refuse_index_space([op for op in behind if isinstance(op, PointwiseOperation)], second.c.dims)
    )


def _refuse_largest(
    graph: OperationGraph, reductions: list[ReductionOperation], weights: Tensor, outputs: set[int]
) -> str:
    """Why they are not the largest magnitudes of ``weights`` and of one of ``outputs``, or an empty string."""
    for op in reductions:
        kind = op.reduction
        if (kind.operator, kind.compute_type) != (ReduceTensorOp.AMAX, DataType.FLOAT) or op.y.element_count != 1:
            return f"operations: expected no reductions but AMAX of everything in FLOAT, got that to {op.y.label}"
        if op.x.uid != weights.uid and op.x.uid not in outputs:
            return f"{op.x.label}: expected an AMAX of the softmax or of the output, got one of another tensor"
        if graph.consumers(op.y) or (not op.y.is_virtual and op.y.data_type is not DataType.FLOAT):
            return f"{op.y.label}: expected an AMAX in FLOAT that is not read, got another one"
    for name, own in {"softmax": {weights.uid}, "output": outputs}.items():
        if sum(op.x.uid in own and not op.y.is_virtual for op in reductions) > 1:
            return f"operations: expected one AMAX of the {name}, got several"
    return ""


def _needed(
    operations: tuple[PointwiseOperation | BlockMask, ...], product: Tensor, result: Tensor
) -> tuple[PointwiseOperation, ...] | str:
    """The operations that ``result`` depends on, or why it cannot be computed behind ``product``."""
    made = {product.uid, *(op.output.uid for op in operations if isinstance(op, PointwiseOperation))}
    if result.uid not in made or result.dims != product.dims:
        return f"{result.label}: expected scores that follow from the first product's, got another tensor"
    wanted, needed = {result.uid}, []
    for op in reversed(operations):
        if wanted.isdisjoint(tensor.uid for tensor in outputs_of(op).values()):
            continue
        if isinstance(op, BlockMask):
            return "operations: expected one BlockMask, with no other operations than masks behind it, got others"
        needed.append(op)
        wanted |= {tensor.uid for tensor in op.operands.values()}
    return tuple(reversed(needed))
