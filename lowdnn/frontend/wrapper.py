"""cudnn.Graph: a pygraph that is written in a ``with`` block, built at its end, and called with arrays.

with Graph(io_data_type=..., inputs=["conv::image", "conv::weight"], outputs=["conv::Y"]) as graph:
    y = graph.conv_fprop(image=x, weight=w, padding=[1, 1], name="conv"); y.set_output(True)
y = graph(x, w, handle=handle)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Literal, Self, TypedDict, Unpack
from weakref import WeakKeyDictionary

from lowdnn.backend.handle import Handle
from lowdnn.checks import sequence, shown
from lowdnn.enums import DataType
from lowdnn.frontend.arguments import members
from lowdnn.frontend.device_tensor import DeviceTensor
from lowdnn.frontend.enums import heur_mode
from lowdnn.frontend.graph_arguments import GraphArguments
from lowdnn.frontend.graph_names import GraphNames
from lowdnn.frontend.graph_tensor import Tensor
from lowdnn.frontend.output_arrays import library_of, output_array, torch_among
from lowdnn.frontend.python_graph import pygraph
from lowdnn.status import AttributeTypeError, BadParamError, DuplicatedEntriesError, NotInitializedError

#: Methods of pygraph that belong to the end of the block and to calls.
_LIFE_CYCLE = frozenset(
    {
        "autotune",
        "build",
        "build_operation_graph",
        "build_plan_at_index",
        "build_plans",
        "check_support",
        "create_execution_plan",
        "create_execution_plans",
        "deselect_behavior_notes",
        "deselect_engines",
        "deselect_numeric_notes",
        "deselect_workspace_greater_than",
        "execute",
        "execute_plan_at_index",
        "get_behavior_notes",
        "get_behavior_notes_for_plan_at_index",
        "get_engine_count",
        "get_execution_plan_count",
        "get_knobs_for_engine",
        "get_plan_name_at_index",
        "key",
        "populate_cuda_graph",
        "run",
        "select_behavior_notes",
        "select_numeric_notes",
        "select_plan",
        "update_cuda_graph",
        "validate",
    }
)


class ExecuteOptions(TypedDict, total=False):
    """Other arguments of ``pygraph.execute``."""

    override_uids: Sequence[int] | None
    override_shapes: Sequence[Sequence[int]] | None
    override_strides: Sequence[Sequence[int]] | None


class Graph:
    """See the module's docstring.

    Methods that add operations and tensors are pygraph's; arrays among their arguments say layouts and types alone.
    An argument that is a tensor has the names ``node::parameter`` and ``node::position``, one in a sequence
    ``node::parameter::position``; an output has its default name (``node::Y``), and the one that it was given. A node
    without a name is called by its method and a number: ``conv_fprop.0``.
    """

    def __init__(
        self,
        *,
        handle: Handle | Literal["auto"] | None = None,
        inputs: Sequence[object] | None = None,
        outputs: Sequence[object] | None = None,
        heuristics: Sequence[heur_mode] | None = None,
        workspace_alloc: bool = True,
        **arguments: Unpack[GraphArguments],
    ) -> None:
        """handle: without one the graph makes its own; with "auto" that works in PyTorch's current stream.

        inputs, outputs: as in ``set_io_tuples``.  heuristics: by default modes A and FALLBACK.
        workspace_alloc: False for a workspace that the caller gives to each call.  arguments: pygraph's.
        """
        if handle not in (None, "auto") and not isinstance(handle, Handle):
            raise AttributeTypeError.at("Graph.handle", expected='a Handle, "auto" or None', got=shown(handle))
        self._is_automatic = handle == "auto"
        self._handle = handle if isinstance(handle, Handle) else None
        self._order = (_keys(inputs, "inputs"), _keys(outputs, "outputs"))
        self._heuristics = members(heur_mode, heuristics or (heur_mode.A, heur_mode.FALLBACK), "Graph.heuristics")
        self._has_workspace = workspace_alloc
        self._workspaces: WeakKeyDictionary[Handle, DeviceTensor] = WeakKeyDictionary()
        self._arguments = arguments
        self._graph: pygraph | None = None
        self._names: GraphNames | None = None
        self._inputs: tuple[Tensor, ...] | None = None
        self._outputs: tuple[Tensor, ...] = ()

    def __enter__(self) -> Self:
        if self._graph is not None:
            raise BadParamError.at("Graph", expected="one with block", got="a second one")
        self._graph = pygraph(handle=self._handle, **self._arguments)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        """Builds the graph. Raises what ``pygraph.build`` and ``set_io_tuples`` raise."""
        if kind is not None or self._graph is None:
            self._graph = None
            return
        repeated = [name for name, count in Counter(node.name for node in self._graph.nodes).items() if count > 1]
        if repeated:
            raise DuplicatedEntriesError.at("Graph", expected="a name of its own for each node", got=repeated)
        self._graph.build(self._heuristics)
        self._names = GraphNames.of(self._graph)
        if any(self._order):
            self.set_io_tuples(*self._order)
        if self._handle is not None and self._has_workspace:
            self._workspace(self._handle)

    def set_io_tuples(self, inputs: Sequence[object], outputs: Sequence[object]) -> None:
        """The inputs in the order in which a call takes them, and the outputs in which it returns them.

        Each is a name, a tensor, a uid, or the array that stood for an input. Together they are all tensors of the
        graph that lie in memory and have no value.
        Raises BadParamError, naming the tensor, where they are not.
        """
        order = (_keys(inputs, "inputs"), _keys(outputs, "outputs"))
        if self._names is None:
            self._order = order
        else:
            self._inputs, self._outputs = self._names.in_order(*order)
            self._names.forget_arrays()

    def __call__(
        self,
        *arrays: Any,
        handle: Handle | None = None,
        workspace: object = None,
        **options: Unpack[ExecuteOptions],
    ) -> Any:
        """Executes the graph: with the inputs in the order of ``set_io_tuples``, or with a dict of values by name,
        tensor or uid.

        Returns the output, or a list of them; of a dict the dict itself, with the outputs that it did not have by their
        default names. New outputs are PyTorch tensors where an input on the GPU is one, otherwise DeviceTensors.
        """
        graph, names = self._built()
        values = arrays[0] if len(arrays) == 1 and isinstance(arrays[0], dict) else None
        if values is not None:
            pack = names.values(values)
        else:
            pack = dict(zip(self._positional(len(arrays)), arrays, strict=True))
        like = torch_among(pack.values())
        chosen = handle or self._chosen_handle(graph, like)
        if values is None:
            made = {tensor: output_array(tensor, like, chosen) for tensor in self._outputs}
        else:
            made = {tensor: output_array(tensor, like, chosen) for tensor in names.missing_outputs(pack)}
        if workspace is None:
            workspace = self._workspace(chosen)
        graph.execute({**pack, **made}, workspace, chosen, **options)
        if values is None:
            found = list(made.values())
            return found[0] if len(found) == 1 else found
        values.update({names.default_name(tensor): array for tensor, array in made.items()})
        return values

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if self._graph is None:
            raise NotInitializedError.at(f"Graph.{name}", expected="a use inside of the with block", got="one before")
        if name in _LIFE_CYCLE:
            raise BadParamError.at(f"Graph.{name}", expected="a method that writes the graph", got="a step of its life")
        return getattr(self._graph, name)

    def __repr__(self) -> str:
        return f"<Graph: {'not written' if self._graph is None else repr(self._graph)}>"

    def _built(self) -> tuple[pygraph, GraphNames]:
        if self._graph is None or self._names is None:
            raise NotInitializedError.at("Graph", expected="a call behind the with block", got="one before its end")
        return self._graph, self._names

    def _positional(self, count: int) -> tuple[Tensor, ...]:
        """The inputs in their order, for ``count`` arrays."""
        if self._inputs is None:
            raise BadParamError.at("Graph.__call__", expected="set_io_tuples before arrays by position", got="none")
        if len(self._inputs) != count:
            raise BadParamError.at("Graph.__call__", expected=f"{len(self._inputs)} arrays", got=count)
        return self._inputs

    def _chosen_handle(self, graph: pygraph, like: Any | None) -> Handle:
        """The graph's own handle, in PyTorch's current stream if it is automatic."""
        handle = graph.handle
        if self._is_automatic and like is not None:
            handle.set_stream(library_of(like).cuda.current_stream(like.device).cuda_stream)
        return handle

    def _workspace(self, handle: Handle) -> DeviceTensor | None:
        """Memory for the plan on this handle, allocated at the first call with it; None where it needs none."""
        graph, _ = self._built()
        size_bytes = graph.get_workspace_size()
        if not size_bytes:
            return None
        if not self._has_workspace:
            raise BadParamError.at("Graph.__call__.workspace", expected=f"{size_bytes} bytes", got="None")
        found = self._workspaces.get(handle)
        if found is None:
            found = self._workspaces[handle] = DeviceTensor(handle, (size_bytes,), (1,), DataType.UINT8)
        return found


def _keys(given: Sequence[object] | None, argument: str) -> tuple[object, ...]:
    if given is not None and not isinstance(given, (list, tuple)):
        raise AttributeTypeError.at(f"Graph.{argument}", expected="a list or tuple", got=shown(given))
    return sequence(given or (), f"Graph.{argument}", "names")
