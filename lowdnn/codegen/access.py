"""How a functor accesses its tensors in memory: pointers, offsets of rows, and the width of accesses."""

from __future__ import annotations

from collections.abc import Collection

from lowdnn import dtypes
from lowdnn.codegen.parts import FunctorParts
from lowdnn.codegen.space import IndexSpace
from lowdnn.ops.tensor import Tensor
from lowdnn.plan import Scalar, ScalarType, TensorPointer

#: The greatest number of elements that one call of ``apply`` handles.
MAX_VECTOR = 16
#: Bytes of the widest access.
_ACCESS_BYTES = 16


def contiguous_elements(tensor: Tensor, strides: tuple[int, ...], vector_axis: int, skew: tuple[int, ...] = ()) -> int:
    """The greatest power of two, at most MAX_VECTOR, that divides every row's address less its skew, in elements."""
    elements = min(MAX_VECTOR, tensor.alignment_bytes // tensor.element_bytes)
    for axis, (stride, skewed) in enumerate(zip(strides, skew or (0,) * len(strides), strict=True)):
        while axis != vector_axis and (stride - skewed) % elements:
            elements //= 2
    return elements


class TensorAccess:
    """Adds to a functor's parts what it needs to read and write tensors.

    stored: uids of the tensors that the functor writes.  skew: strides of a row's skew, or empty.
    """

    def __init__(
        self, parts: FunctorParts, space: IndexSpace, vector_axis: int, skew: tuple[int, ...], stored: Collection[int]
    ) -> None:
        self._parts = parts
        self._space = space
        self._vector_axis = vector_axis
        self._skew = skew
        self._stored = stored
        self._pointers: dict[int, str] = {}
        self._widths: list[int] = []
        self._narrowest_bytes = _ACCESS_BYTES

    @property
    def vector(self) -> int:
        """``Functor.vector`` for the tensors that have been asked for."""
        return min([*self._widths, _ACCESS_BYTES // self._narrowest_bytes])

    def load(self, tensor: Tensor) -> str:
        """Reads V elements in ``load`` and, if asked for, in ``copy``; returns the name of element i in ``finish``."""
        name, stride = self._pointer(tensor), self._stride(tensor)
        storage, address = dtypes.info(tensor.data_type).c_type, self._address(tensor)
        self._parts.source = f"{address} + column"
        if stride == 0:
            self._parts.loaded.append(f"{storage} {name};")
            self._read(f"in.{name} = {address}[0];", f"in.{name} = copied.{name};")
            return f"in.{name}"
        size = f"sizeof({storage}) * V"
        aligned = f"alignas({size} < 16 ? {size} : 16) " if self._parts.has_copies else ""
        self._parts.loaded.append(f"{aligned}{storage} {name}[V];")
        fetch = f"::load<Plain, V>(in.{name}, copied.{name});"
        if stride == 1:
            copy = f"copy_row<{self._width(tensor)}>(in.{name}, {address} + column, valid);"
            self._read(self._row_read(tensor, name, address), fetch, copy)
        else:
            step = f"args.{name}_stride{self._vector_axis}"
            self._read(f"load_strided(in.{name}, {address} + column * {step}, {step}, valid);", fetch)
        return f"in.{name}[i]"

    def store(self, tensor: Tensor, value: str) -> None:
        """Generates the store of ``value``, the text of element i in the tensor's storage type."""
        name, stride = self._pointer(tensor), self._stride(tensor)
        self._parts.before.append(f"{dtypes.info(tensor.data_type).c_type} {name}_out[V];")
        self._parts.body.append(f"{name}_out[i] = {value};")
        address = self._address(tensor)
        if stride == 1:
            self._parts.after.append(f"store_row<{self._width(tensor)}>({address} + column, {name}_out, valid);")
        elif stride == 0:
            self._parts.after.append(f"store_strided({address}, {name}_out, 0, valid);")
        else:
            step = f"args.{name}_stride{self._vector_axis}"
            self._parts.after.append(f"store_strided({address} + column * {step}, {name}_out, {step}, valid);")

    def _read(self, load: str, fetch: str, copy: str = "") -> None:
        """copy: the copy's text where it is not the same access as the load's."""
        self._parts.loads.append(load)
        self._parts.copies.append((copy or load).replace("in.", "copied."))
        self._parts.fetches.append(fetch)

    def _row_read(self, tensor: Tensor, name: str, address: str) -> str:
        """Reads elements that are contiguous in memory."""
        path, width = self._path(tensor), self._width(tensor)
        if self._skew and width * tensor.element_bytes < _ACCESS_BYTES <= tensor.alignment_bytes:
            extent = Scalar(ScalarType.I64, self._space.extents[self._vector_axis])
            self._parts.add_field("i64", f"{name}_extent", extent)
            return f"load_anywhere<{path}>(in.{name}, {address} + column, args.{name}_extent - column);"
        return f"load_row<{path}, {width}>(in.{name}, {address} + column, valid);"

    def _pointer(self, tensor: Tensor) -> str:
        """The name of the tensor's pointer; the first call declares its fields and its offset in the cursor."""
        if tensor.uid in self._pointers:
            return self._pointers[tensor.uid]
        name = f"tensor{len(self._pointers)}"
        self._pointers[tensor.uid] = name
        facts = dtypes.info(tensor.data_type)
        constness = "" if tensor.uid in self._stored else "const "
        self._parts.add_field(f"{constness}{facts.c_type}*", name, TensorPointer(tensor.uid))
        strides = self._space.strides[tensor.uid]
        terms = []
        for axis, stride in enumerate(strides):
            if axis != self._vector_axis and stride:
                terms.append(f"coordinate[{axis}] * args.{name}_stride{axis}")
            if stride > (1 if axis == self._vector_axis else 0):
                self._parts.add_field("i64", f"{name}_stride{axis}", Scalar(ScalarType.I64, stride))
        self._parts.offsets[name] = "\n      + ".join(terms) or "0"
        if strides[self._vector_axis] == 1:
            self._widths.append(contiguous_elements(tensor, strides, self._vector_axis, self._skew))
            self._narrowest_bytes = min(self._narrowest_bytes, facts.size_bytes)
        return name

    def _address(self, tensor: Tensor) -> str:
        name = self._pointers[tensor.uid]
        return f"(args.{name} + at.{name})"

    def _stride(self, tensor: Tensor) -> int:
        return self._space.strides[tensor.uid][self._vector_axis]

    def _path(self, tensor: Tensor) -> str:
        """The access by which a contiguous tensor is read (``vector.cuh``)."""
        if tensor.uid in self._stored:
            return "Plain"
        axes = zip(self._space.strides[tensor.uid], self._space.extents, strict=True)
        if any(not stride and extent > 1 for stride, extent in axes):
            return "Repeated"
        # Whole vectors of 16 bytes that are read once are never read again from L1.
        return "Stream" if self._width(tensor) * tensor.element_bytes == _ACCESS_BYTES else "Plain"

    def _width(self, tensor: Tensor) -> int:
        elements = contiguous_elements(tensor, self._space.strides[tensor.uid], self._vector_axis, self._skew)
        return min(elements, _ACCESS_BYTES // tensor.element_bytes)
