"""All descriptor types, each with the dataclass that declares its attributes."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from lowdnn.backend.descriptor import Descriptor
from lowdnn.backend.engine_descriptors import (
    EngineChoice,
    EngineConfig,
    EngineHeuristics,
    IntermediateInfo,
    KnobChoice,
    KnobInfo,
    LayoutInfo,
)
from lowdnn.backend.graph_descriptors import DeviceProperties, GraphDescription
from lowdnn.backend.kernel_cache import KernelCache
from lowdnn.backend.plan_descriptors import ExecutionPlan, VariantPack
from lowdnn.backend.uncomputed import Signal
from lowdnn.backend.values import is_enum_number
from lowdnn.enums import DescriptorType
from lowdnn.ops import catalog
from lowdnn.status import NotSupportedError

_MACHINERY: tuple[type, ...] = (
    GraphDescription,
    DeviceProperties,
    EngineChoice,
    EngineConfig,
    EngineHeuristics,
    KnobChoice,
    KnobInfo,
    LayoutInfo,
    IntermediateInfo,
    ExecutionPlan,
    VariantPack,
    Signal,
    KernelCache,
)


@cache
def declarations() -> Mapping[DescriptorType, type]:
    """The declaring class of each descriptor type, in the order of the types' numbers.

    A compound operation comes before the one that it may stand for; a special form comes with the values that it fits.
    """
    listed = [cls for cls in (*catalog.descriptors(), *catalog.compounds(), *_MACHINERY) if not hasattr(cls, "form_of")]
    classes: dict[DescriptorType, type] = {cls.descriptor_type: cls for cls in listed}  # type: ignore[attr-defined]
    return dict(sorted(classes.items()))


def create(descriptor_type: DescriptorType) -> Descriptor:
    """A new, empty descriptor (cudnnBackendCreateDescriptor); raises NotSupportedError for a type not listed above."""
    declaration = declarations().get(descriptor_type) if is_enum_number(descriptor_type) else None
    if declaration is None:
        raise NotSupportedError.at(
            "create.descriptor_type",
            expected="one of " + ", ".join(known.name for known in declarations()),
            got=descriptor_type.name if isinstance(descriptor_type, DescriptorType) else f"{descriptor_type!r}"[:200],
            hint=_hint(descriptor_type),
        )
    return Descriptor(declaration)


def _hint(asked: object) -> str:
    """A hint for descriptor types that do not exist: where lowdnn has the operation instead."""
    without = [cls for cls in catalog.operations() if cls not in catalog.descriptors()]
    is_known = any(asked is cls or (isinstance(asked, str) and asked == cls.__name__) for cls in without)
    hint = "cuDNN has no descriptor of this operation; write it with pygraph, or a recurrent network with lowdnn.adv"
    return hint if is_known else ""
