"""Faults on request: a driver whose calls fail as a text says, to test how a program copes.

    open_driver("emulated", faults="mem_alloc:3=OUT_OF_MEMORY, launch:2-=LAUNCH_FAILED")

lets the third ``mem_alloc`` fail, and all launches from the second one on. The text is a list of faults:

    faults  =  fault {"," fault}
    fault   =  call ":" which "=" result
    call    =  a method of ``Driver``, or "launch": the callables that ``prepare_launch`` returns
    which   =  N | N-M | N- | "*"          counted from 1 since the driver was opened, in all threads together
    result  =  the name of a CUresult, with or without CUDA_ERROR_

A call that fails does nothing. Calls that free, destroy or end something are the exception: they do so first, as those
of a GPU's driver do, which report earlier failures there; a capture whose end fails is over and gives no graph. An
injected fault does not stick to the context as a kernel's does; ``N-`` imitates that.
"""

from __future__ import annotations

import itertools
import re
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

from lowdnn.driver.base import Driver, DriverError, LaunchConfig, emitted
from lowdnn.driver.results import CuResult, argument_text
from lowdnn.status import BadParamError

#: The driver's function behind each method that may fail, for messages.
CALLS: Mapping[str, str] = {
    "init": "cuInit",
    "driver_version": "cuDriverGetVersion",
    "ptx_isa_version": "cuDriverGetVersion",
    "device_count": "cuDeviceGetCount",
    "device_name": "cuDeviceGetName",
    "device_total_memory_bytes": "cuDeviceTotalMem",
    "device_attribute": "cuDeviceGetAttribute",
    "device_can_access_peer": "cuDeviceCanAccessPeer",
    "primary_context_retain": "cuDevicePrimaryCtxRetain",
    "primary_context_release": "cuDevicePrimaryCtxRelease",
    "context_get_current": "cuCtxGetCurrent",
    "context_set_current": "cuCtxSetCurrent",
    "context_get_device": "cuCtxGetDevice",
    "context_synchronize": "cuCtxSynchronize",
    "context_enable_peer_access": "cuCtxEnablePeerAccess",
    "context_disable_peer_access": "cuCtxDisablePeerAccess",
    "mem_get_info": "cuMemGetInfo",
    "mem_alloc": "cuMemAlloc",
    "mem_free": "cuMemFree",
    "mem_alloc_async": "cuMemAllocAsync",
    "mem_free_async": "cuMemFreeAsync",
    "pointer_info": "cuPointerGetAttribute",
    "memcpy_htod_async": "cuMemcpyHtoDAsync",
    "memcpy_dtoh_async": "cuMemcpyDtoHAsync",
    "memcpy_dtod_async": "cuMemcpyDtoDAsync",
    "memcpy_peer_async": "cuMemcpyPeerAsync",
    "memset_d8_async": "cuMemsetD8Async",
    "memset_d32_async": "cuMemsetD32Async",
    "ipc_get_mem_handle": "cuIpcGetMemHandle",
    "ipc_open_mem_handle": "cuIpcOpenMemHandle",
    "ipc_close_mem_handle": "cuIpcCloseMemHandle",
    "ipc_get_event_handle": "cuIpcGetEventHandle",
    "ipc_open_event_handle": "cuIpcOpenEventHandle",
    "tensor_map_encode_tiled": "cuTensorMapEncodeTiled",
    "tensor_map_encode_im2col": "cuTensorMapEncodeIm2col",
    "tensor_map_replace_address": "cuTensorMapReplaceAddress",
    "stream_create": "cuStreamCreateWithPriority",
    "stream_destroy": "cuStreamDestroy",
    "stream_synchronize": "cuStreamSynchronize",
    "stream_query": "cuStreamQuery",
    "stream_wait_event": "cuStreamWaitEvent",
    "stream_context": "cuStreamGetCtx",
    "stream_begin_capture": "cuStreamBeginCapture",
    "stream_end_capture": "cuStreamEndCapture",
    "stream_is_capturing": "cuStreamIsCapturing",
    "thread_exchange_capture_mode": "cuThreadExchangeStreamCaptureMode",
    "event_create": "cuEventCreate",
    "event_destroy": "cuEventDestroy",
    "event_record": "cuEventRecord",
    "event_synchronize": "cuEventSynchronize",
    "event_query": "cuEventQuery",
    "event_peek": "cuEventQuery",
    "event_elapsed_ms": "cuEventElapsedTime",
    "module_load_data": "cuModuleLoadDataEx",
    "module_unload": "cuModuleUnload",
    "module_get_function": "cuModuleGetFunction",
    "function_parameter_bytes": "cuFuncGetParamInfo",
    "function_get_attribute": "cuFuncGetAttribute",
    "function_set_attribute": "cuFuncSetAttribute",
    "occupancy_max_active_blocks": "cuOccupancyMaxActiveBlocksPerMultiprocessor",
    "occupancy_max_active_clusters": "cuOccupancyMaxActiveClusters",
    "occupancy_max_potential_cluster_size": "cuOccupancyMaxPotentialClusterSize",
    "prepare_launch": "cuLaunchKernel",
    "launch": "cuLaunchKernel",
    "graph_create": "cuGraphCreate",
    "graph_destroy": "cuGraphDestroy",
    "graph_nodes": "cuGraphGetNodes",
    "graph_add_kernel_node": "cuGraphAddKernelNode",
    "graph_kernel_node_set_params": "cuGraphKernelNodeSetParams",
    "graph_instantiate": "cuGraphInstantiate",
    "graph_exec_update": "cuGraphExecUpdate",
    "graph_exec_kernel_node_set_params": "cuGraphExecKernelNodeSetParams",
    "graph_launch": "cuGraphLaunch",
    "graph_exec_destroy": "cuGraphExecDestroy",
}

#: Calls that release something, and do so even if they fail.
RELEASES = frozenset(
    {
        "primary_context_release",
        "mem_free",
        "mem_free_async",
        "context_disable_peer_access",
        "ipc_close_mem_handle",
        "stream_destroy",
        "event_destroy",
        "module_unload",
        "graph_destroy",
        "graph_exec_destroy",
    }
)

_FAULT = re.compile(r"(\w+):(?:(\d+)(-(\d*))?|\*)=(\w+)")
_NO_FAILURES = (CuResult.SUCCESS, CuResult.NOT_READY)


@dataclass(frozen=True)
class Fault:
    """The calls ``first`` to ``last`` of ``call`` fail with ``result``; all from ``first`` on if ``last`` is None."""

    call: str
    first: int
    last: int | None
    result: CuResult

    def hits(self, number: int) -> bool:
        return self.first <= number and (self.last is None or number <= self.last)


def parse_faults(text: str) -> tuple[Fault, ...]:
    """The faults that ``text`` lists, in the form of the module's docstring; raises BadParamError for any other."""
    return tuple(_parse_fault(part.strip()) for part in text.split(",")) if text.strip() else ()


def with_faults(driver: Driver, text: str) -> Driver:
    """``driver`` itself where the text is empty, otherwise one whose calls fail as it says. Raises BadParamError."""
    faults = parse_faults(text)
    return cast(Driver, FaultyDriver(driver, faults)) if faults else driver


class FaultyDriver:
    """Wraps a ``Driver``: calls that a fault names are counted and may fail, the others are passed through."""

    def __init__(self, driver: Driver, faults: tuple[Fault, ...]) -> None:
        self.kind = driver.kind
        self.dlpack_device_type = driver.dlpack_device_type
        self.takes_machine_code = driver.takes_machine_code
        self.host_functions = driver.host_functions
        self.block_places = driver.block_places
        self._driver = driver
        self._faults: defaultdict[str, list[Fault]] = defaultdict(list)
        for fault in faults:
            self._faults[fault.call].append(fault)
        # One count for all launches. A step of ``itertools.count`` is one step for all threads.
        self._counts = {call: itertools.count(1) for call in self._faults}
        for call in CALLS.keys() - {"launch"}:
            setattr(self, call, self._guarded(call, getattr(driver, call)))
        if "launch" in self._faults:
            self.prepare_launch = partial(self._prepare_launch, self._guarded("prepare_launch", driver.prepare_launch))

    def _prepare_launch(
        self, prepare: Callable[..., Callable[[int], None]], function: int, config: LaunchConfig, parameters: int
    ) -> Callable[[int], None]:
        return self._guarded("launch", prepare(function, config, parameters), function, config)

    def _guarded(self, call: str, function: Callable[..., Any], *shown: object) -> Callable[..., Any]:
        """``function`` that fails where ``call`` is to; ``shown`` are arguments that an error tells before its own."""
        faults, counts = self._faults.get(call), self._counts.get(call)
        if faults is None or counts is None:
            return function

        def guarded(*arguments: object, **options: object) -> Any:
            number = next(counts)
            fault = next((one for one in faults if one.hits(number)), None)
            if fault is None:
                return function(*arguments, **options)
            if call in RELEASES:
                function(*arguments, **options)
            elif call == "stream_end_capture":
                self._driver.graph_destroy(function(*arguments, **options))
            text = argument_text((*shown, *arguments, *options.values()))
            facts = CALLS[call], fault.result, fault.result.c_name, text, f"injected into {call} {number}"
            raise emitted(DriverError(*facts))

        return guarded


def _parse_fault(text: str) -> Fault:
    found = _FAULT.fullmatch(text)
    if found is None:
        raise _refusal("CALL:N=RESULT, CALL:N-M=RESULT, CALL:N-=RESULT or CALL:*=RESULT", text)
    call, number, is_range, end, result = found.groups()
    if call not in CALLS:
        raise _refusal("a call of Driver, or launch", call)
    name = result.removeprefix("CUDA_ERROR_")
    if name not in CuResult.__members__ or CuResult[name] in _NO_FAILURES:
        raise _refusal("a CUresult that is a failure, such as OUT_OF_MEMORY", result)
    first = 1 if number is None else int(number)
    last = None if number is None or (is_range and not end) else int(end or number)
    if first < 1 or (last is not None and last < first):
        raise _refusal("numbers of calls that ascend from 1", text)
    return Fault(call, first, last, CuResult[name])


def _refusal(expected: str, got: str) -> BadParamError:
    return cast(BadParamError, BadParamError.at("open_driver.faults", expected=expected, got=repr(got)))
