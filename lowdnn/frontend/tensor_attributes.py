"""A tensor's getters and setters as attributes: ``tensor.dim`` is ``tensor.get_dim()``."""

from __future__ import annotations

from typing import Any


class _Attribute:
    """Reads by the getter of its name, writes by the setter, which checks."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._getter, self._setter = f"get_{name}", f"set_{name}"

    def __get__(self, tensor: object | None, owner: type) -> Any:
        return self if tensor is None else getattr(tensor, self._getter)()

    def __set__(self, tensor: object, value: object) -> None:
        getattr(tensor, self._setter)(value)


class TensorAttributes:
    """The attributes that ``Tensor`` has in cudnn-frontend's Python package since 1.32."""

    name = _Attribute()
    uid = _Attribute()
    data_type = _Attribute()
    dim = _Attribute()
    stride = _Attribute()
    is_virtual = _Attribute()
    is_pass_by_value = _Attribute()
    pass_by_value = _Attribute()
    scalar_type = _Attribute()
    reordering_type = _Attribute()
    ragged_offset = _Attribute()
    ragged_offset_multiplier = _Attribute()
    alignment_value = _Attribute()
