"""The descriptor KERNEL_CACHE: compiled kernels that plans made with it share."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar
from weakref import WeakValueDictionary

from lowdnn.backend.engine_descriptors import EngineConfig
from lowdnn.backend.graph_descriptors import GraphDescription
from lowdnn.backend.read_only import read_only
from lowdnn.documents import read_document, shown, write_document
from lowdnn.enums import AttributeName, AttributeType, DescriptorType
from lowdnn.runtime.kernel_images import KernelImages
from lowdnn.schema import attribute
from lowdnn.status import BadParamError, NotSupportedError

_MANY = 2**31 - 1
#: Version of the JSON form.
_SCHEMA_VERSION = 1
_KEY = re.compile("[0-9a-f]{64}")


@dataclass(frozen=True, eq=False)
class KernelCache:
    """Images of the kernels that were compiled for plans with this cache; plans that need them again compile nothing.

    Kernels that lowdnn has precompiled are not among them. Kernels are found by what they are, so a cache serves any
    graph: ``description`` says which one it was made for, and changes nothing.

    JSON form: ``{"lowdnn_kernel_cache": 1, "kernels": [key...]}``. It names entries of the disk cache and has no code,
    since what is in a document is never run; where the disk cache lacks an entry, its kernel is compiled.
    """

    descriptor_type: ClassVar[DescriptorType] = DescriptorType.KERNEL_CACHE

    description: GraphDescription | None = attribute(
        AttributeName.KERNEL_CACHE_OPERATION_GRAPH,
        AttributeType.BACKEND_DESCRIPTOR,
        descriptor=DescriptorType.OPERATIONGRAPH,
        default=None,
    )
    json: str = attribute(
        AttributeName.KERNEL_CACHE_JSON_REPRESENTATION, AttributeType.CHAR, max_count=_MANY, default=""
    )

    def __post_init__(self) -> None:
        _ = self.images

    @cached_property
    def images(self) -> KernelImages:
        """The kernels of ``json``; raises BadParamError and SerializationVersionMismatchError for other JSON."""
        return KernelImages(_keys(self.json) if self.json else ())

    def add_config(self, config: EngineConfig) -> None:
        """Notes that a plan of ``config`` was loaded with the cache."""
        self._configs[id(config)] = config

    @cached_property
    def _configs(self) -> WeakValueDictionary[int, EngineConfig]:
        """The configurations of plans that are still there, by their ``id``."""
        return WeakValueDictionary()

    @read_only(
        AttributeName.KERNEL_CACHE_IS_ENGINECFG_KERNEL_CACHED,
        AttributeType.BACKEND_DESCRIPTOR,
        asked=DescriptorType.ENGINECFG,
    )
    def has_kernels_of(self, config: EngineConfig) -> bool:
        """Whether a plan of the configuration was loaded with the cache, and is still there."""
        return config in self._configs.values()

    @read_only(AttributeName.KERNEL_CACHE_JSON_REPRESENTATION, AttributeType.CHAR)
    def json_representation(self) -> str:
        return write_document("lowdnn_kernel_cache", _SCHEMA_VERSION, {"kernels": list(self.images.names)})

    @read_only(AttributeName.KERNEL_CACHE_REVISION, AttributeType.INT64, set_error=NotSupportedError)
    def revision(self) -> int:
        return self.images.revision

    @read_only(AttributeName.KERNEL_CACHE_ENTRY_COUNT, AttributeType.INT64, set_error=NotSupportedError)
    def entry_count(self) -> int:
        return len(self.images)


def _keys(text: str) -> list[str]:
    where = "KERNEL_CACHE descriptor.KERNEL_CACHE_JSON_REPRESENTATION"
    found: list[str] = read_document(text, "lowdnn_kernel_cache", _SCHEMA_VERSION, {"kernels": list}, where)["kernels"]
    for index, key in enumerate(found):
        if not isinstance(key, str) or not _KEY.fullmatch(key):
            raise BadParamError.at(f"{where}.kernels[{index}]", expected="64 hexadecimal digits", got=shown(key))
    return found
