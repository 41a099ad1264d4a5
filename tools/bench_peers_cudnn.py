"""cuDNN's own fused graph of a convolution, bias, residual and activation, through cudnn-frontend.

The plans that cuDNN's heuristics put first are built and timed once; the fastest is the peer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from bench_data import CaseData

from lowdnn.enums import DataType
from lowdnn.graph.cases import ConvolutionCase

_PLANS = 4
_REPEATS = 5

Peer = Callable[[int], torch.Tensor]


def fused_convolution(
    case: ConvolutionCase, data: CaseData, stride: list[int], padding: list[int], dilation: list[int]
) -> Peer:
    """The peer; its graph is built at the first launch, which raises what cuDNN has against it."""
    graphs: list[_Graph] = []

    def launch(slot: int) -> torch.Tensor:
        if not graphs:
            graphs.append(_Graph(case, data, stride, padding, dilation))
        return graphs[0].launch(slot)

    return launch


class _Graph:
    def __init__(
        self, case: ConvolutionCase, data: CaseData, stride: list[int], padding: list[int], dilation: list[int]
    ) -> None:
        import cudnn  # only here: no dependency of lowdnn's

        type_ = {DataType.BFLOAT16: cudnn.data_type.BFLOAT16, DataType.HALF: cudnn.data_type.HALF}[case.dtype]
        fp32 = cudnn.data_type.FLOAT
        self._cudnn = cudnn
        self._handle = cudnn.create_handle()
        self._graph = graph = cudnn.pygraph(
            io_data_type=type_, intermediate_data_type=fp32, compute_data_type=fp32, handle=self._handle
        )
        channel = (1, data.output.dims[1], *(1,) * (len(data.output.dims) - 2))
        self._inputs = [data["x"], data["w"], [row.view(channel) for row in data.bias()]]
        residual = data.residual()
        self._inputs += [residual] if residual else []
        x, w, bias, *rest = self._tensors = [_tensor(graph, copies[0], type_) for copies in self._inputs]
        y = graph.conv_fprop(image=x, weight=w, padding=padding, stride=stride, dilation=dilation)
        y = graph.bias(input=y, bias=bias)
        for z in rest:
            y = graph.add(a=y, b=z)
        self._y = {"relu": graph.relu, "swish": graph.swish, "gelu": graph.gelu}[case.epilogue[-1]](input=y)
        self._y.set_output(True).set_data_type(type_)
        self._results = data.fresh_outputs()
        self._workspaces: dict[int, torch.Tensor] = {}
        self._best = self._fastest()

    def launch(self, slot: int) -> torch.Tensor:
        self._execute(self._best, slot)
        return self._results[slot]

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
        values = {tensor: copies[slot] for tensor, copies in zip(self._tensors, self._inputs, strict=True)}
        values[self._y] = self._results[slot]
        self._graph.execute_plan_at_index(values, self._workspaces[index], index, handle=self._handle)


def _tensor(graph: Any, values: torch.Tensor, data_type: Any) -> Any:
    return graph.tensor(dim=list(values.shape), stride=list(values.stride()), data_type=data_type)
