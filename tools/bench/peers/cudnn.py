"""cuDNN's own graphs through cudnn-frontend: a convolution with bias, residual and activation; attention in fp8, and
over keys and values in pages.

The plans that cuDNN's heuristics put first are built and timed once; the fastest is the peer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from lowdnn.cases.families.attention import AttentionCase
from lowdnn.cases.families.convolution import ConvolutionCase
from lowdnn.enums import DataType
from tools.bench.data import TORCH_TYPES, CaseData

_PLANS = 4
_REPEATS = 5

Copies = list[torch.Tensor]


def fused_convolution(
    case: ConvolutionCase, data: CaseData, stride: list[int], padding: list[int], dilation: list[int]
) -> Callable[[int], torch.Tensor]:
    """The peer; its graph is built at the first launch, which raises what cuDNN has against it."""

    def build(graph: _Graph) -> list[Any]:
        channel = (1, data.output.dims[1], *(1,) * (len(data.output.dims) - 2))
        residual = data.residual()
        inputs = [data["x"], data["w"], [row.view(channel) for row in data.bias()], *([residual] if residual else [])]
        x, w, bias, *rest = map(graph.input, inputs)
        nodes = graph.nodes
        y = nodes.conv_fprop(image=x, weight=w, padding=padding, stride=stride, dilation=dilation)
        y = nodes.bias(input=y, bias=bias)
        for z in rest:
            y = nodes.add(a=y, b=z)
        return [{"relu": nodes.relu, "swish": nodes.swish, "gelu": nodes.gelu}[case.epilogue[-1]](input=y)]

    launch = _launch_of(case.dtype, build, [data.fresh_outputs()])
    return lambda slot: launch(slot)[0]


def fp8_attention(case: AttentionCase, data: CaseData) -> Callable[[int], list[torch.Tensor]]:
    """cuDNN's graph of attention in fp8, with all outputs."""
    names = ("q", "k", "v", "descale_q", "descale_k", "descale_v", "descale_s", "scale_s", "scale_o")

    def build(graph: _Graph) -> list[Any]:
        copies = {name: data[name] for name in names}
        copies["k"] = [copy.transpose(2, 3) for copy in copies["k"]]
        o, *others = graph.nodes.sdpa_fp8(
            *map(graph.input, copies.values()),
            is_inference=False,
            attn_scale=case.d**-0.5,
            use_causal_mask=case.causal != "no",
        )
        return [*others, o]

    outputs = [[torch.empty_like(copy) for copy in copies] for copies in data.outputs()]
    return _launch_of(case.dtype, build, outputs)


def paged_attention(case: AttentionCase, data: CaseData) -> Callable[[int], list[torch.Tensor]]:
    """cuDNN's graph of attention over pages, whose caches are full."""
    queries = torch.full((case.b, 1, 1, 1), case.q, device="cuda", dtype=torch.int32)

    def build(graph: _Graph) -> list[Any]:
        q, k, v = (graph.input(data[name]) for name in ("q", "k", "v"))
        o, _ = graph.nodes.sdpa(
            q=q,
            k=k,
            v=v,
            is_inference=True,
            attn_scale=case.d**-0.5,
            use_causal_mask=case.causal != "no",
            use_padding_mask=True,
            seq_len_q=graph.input([queries] * data.slots),
            seq_len_kv=graph.input(data["lengths"]),
            paged_attention_k_table=graph.input(data["kpage_table"]),
            paged_attention_v_table=graph.input(data["vpage_table"]),
            paged_attention_max_seq_len_kv=case.kv or case.q,
        )
        return [o]

    return _launch_of(case.dtype, build, [data.fresh_outputs()])


def _launch_of(
    data_type: DataType, build: Callable[[_Graph], list[Any]], outputs: list[Copies]
) -> Callable[[int], list[torch.Tensor]]:
    """A function that runs the graph of ``build``, whose results go to ``outputs``."""
    graphs: list[_Graph] = []

    def launch(slot: int) -> list[torch.Tensor]:
        if not graphs:
            graphs.append(_Graph(data_type, build, outputs))
        graphs[0].launch(slot)
        return [copies[slot] for copies in outputs]

    return launch


class _Graph:
    def __init__(self, data_type: DataType, build: Callable[[_Graph], list[Any]], outputs: list[Copies]) -> None:
        import cudnn  # only here: no dependency of lowdnn's

        types = cudnn.data_type
        self._types = {
            torch.bfloat16: types.BFLOAT16,
            torch.float16: types.HALF,
            torch.float32: types.FLOAT,
            torch.float8_e4m3fn: types.FP8_E4M3,
            torch.float8_e5m2: types.FP8_E5M2,
            torch.int32: types.INT32,
        }
        self._cudnn = cudnn
        self._handle = cudnn.create_handle()
        self.nodes = self._graph = cudnn.pygraph(
            io_data_type=self._types[TORCH_TYPES[data_type]],
            intermediate_data_type=types.FLOAT,
            compute_data_type=types.FLOAT,
            handle=self._handle,
        )
        self._copies: dict[Any, Copies] = {}
        for tensor, copies in zip(build(self), outputs, strict=True):
            like = copies[0]
            tensor.set_output(True).set_data_type(self._types[like.dtype])
            tensor.set_dim(list(like.shape)).set_stride(list(like.stride()))
            self._copies[tensor] = copies
        self._workspaces: dict[int, torch.Tensor] = {}
        self._best = self._fastest()

    def input(self, copies: Copies) -> Any:
        like = copies[0]
        tensor = self._graph.tensor(dim=list(like.shape), stride=list(like.stride()), data_type=self._types[like.dtype])
        self._copies[tensor] = copies
        return tensor

    def launch(self, slot: int) -> None:
        self._execute(self._best, slot)

    def _fastest(self) -> int:
        graph, modes = self._graph, self._cudnn.heur_mode
        graph.validate()
        graph.build_operation_graph()
        graph.create_execution_plans([modes.A, modes.FALLBACK])
        graph.check_support()
        times_us: dict[int, float] = {}
        for index in range(min(_PLANS, graph.get_execution_plan_count())):
            try:
                graph.build_plan_at_index(index)
            except self._cudnn.cudnnGraphNotSupportedError:
                continue
            times_us[index] = self._time_us(index)
        return min(times_us, key=times_us.__getitem__)

    def _time_us(self, index: int) -> float:
        size = max(1, self._graph.get_workspace_size_plan_at_index(index))
        self._workspaces[index] = torch.empty(size, device="cuda", dtype=torch.uint8)
        self._execute(index, 0)
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        for _ in range(_REPEATS):
            self._execute(index, 0)
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) * 1e3 / _REPEATS

    def _execute(self, index: int, slot: int) -> None:
        self._cudnn.set_stream(handle=self._handle, stream=torch.cuda.current_stream().cuda_stream)
        values = {tensor: copies[slot] for tensor, copies in self._copies.items()}
        self._graph.execute_plan_at_index(values, self._workspaces[index], index, handle=self._handle)
