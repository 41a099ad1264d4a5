"""Bundles in the disk cache: each image is an entry of its own, and one more says which images and plans there are.

So a process reads the images that it needs alone, and where nothing was imported, it looks once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from lowdnn import __version__
from lowdnn.codec import encode
from lowdnn.documents import MAX_BYTES, read_document, write_document
from lowdnn.runtime.bundle import DIGEST, Bundle, BundledPlan, by_structure, plans_from
from lowdnn.runtime.cache import DiskCache
from lowdnn.status import BadParamError, LowdnnError, SizeInsufficientError

_VERSION = 1
_FIELDS = {"images": list, "plans": list}


class ImportedBundles:
    """The images and plans of the bundles that were imported for devices like one. Safe to share between threads."""

    def __init__(self, cache: DiskCache, arch: str, sm_count: int) -> None:
        self._cache = cache
        self._key = _index_key(arch, sm_count)

    def image(self, source: str, output: str) -> bytes | None:
        key = _image_key(source, output)
        return self._cache.get(key) if key in self._index.images else None

    def has_image(self, source: str, output: str) -> bool:
        key = _image_key(source, output)
        return key in self._index.images and self._cache.has(key)

    def plan(self, graph: str) -> BundledPlan | None:
        return self._index.plans.get(graph)

    def plans_like(self, structure: str) -> Sequence[BundledPlan]:
        return self._by_structure.get(structure, ())

    @cached_property
    def _index(self) -> _Index:
        return _index_from(self._cache.get(self._key))

    @cached_property
    def _by_structure(self) -> dict[str, list[BundledPlan]]:
        return by_structure(self._index.plans.values())


def import_bundle(bundle: Bundle, cache: DiskCache) -> None:
    """Puts the images and plans of a bundle into ``cache``, all of them or none.

    Where a plan was imported before for a graph, the new one takes its place.
    Raises SizeInsufficientError for a bundle that is too large for the cache, BadParamError for a cache that cannot be
    written.
    """
    images = {_image_key(image.source, image.output): bytes(image.data) for image in bundle.images}
    needed_bytes = sum(map(len, images.values())) + MAX_BYTES
    if needed_bytes > cache.limit_bytes:
        raise SizeInsufficientError.at(
            "cache.limit_bytes",
            expected=f"at least {needed_bytes}, for the images of the bundle and their index",
            got=cache.limit_bytes,
            hint="set LOWDNN_CACHE_SIZE",
        )
    new = [key for key, image in images.items() if cache.get(key) != image]
    added = _Index(frozenset(images), {plan.graph: plan for plan in bundle.plans})
    index_key = _index_key(bundle.arch, bundle.sm_count)
    is_done = False
    try:
        # No process reads an image that the index does not name, so writing the index last imports all of them at once.
        is_done = all(cache.put(key, images[key]) for key in new) and cache.update(
            index_key, lambda old: _index_from(old).with_(added).content()
        )
    finally:
        if not is_done:
            for key in new:
                cache.discard(key)
    if not is_done:
        facts = cache.facts()
        got = f"{facts.directory}: {facts.refusal or 'a write that failed'}"
        raise BadParamError.at("cache.directory", expected="a directory with room that this user may write", got=got)


@dataclass(frozen=True)
class _Index:
    """images: keys of entries.  plans: by the keys of their graphs."""

    images: frozenset[str] = frozenset()
    plans: Mapping[str, BundledPlan] = field(default_factory=dict)

    def with_(self, other: _Index) -> _Index:
        return _Index(self.images | other.images, {**self.plans, **other.plans})

    def content(self) -> bytes:
        fields = {"images": sorted(self.images), "plans": encode(tuple(self.plans.values()))}
        return write_document("lowdnn_imported", _VERSION, fields).encode()


def _index_from(content: bytes | None) -> _Index:
    """The index of an entry's content; an empty one where there is none, or another version's."""
    where = "imported bundles"
    if content is None:
        return _Index()
    try:
        fields = read_document(content, "lowdnn_imported", _VERSION, _FIELDS, where)
        plans = plans_from(fields["plans"], f"{where}.plans")
    except LowdnnError:
        return _Index()
    keys = (key for key in fields["images"] if isinstance(key, str) and DIGEST.fullmatch(key))
    return _Index(frozenset(keys), {plan.graph: plan for plan in plans})


def _image_key(source: str, output: str) -> str:
    return hashlib.sha256(f"imported {source} {output}".encode()).hexdigest()


def _index_key(arch: str, sm_count: int) -> str:
    """One for each version of lowdnn, since another one makes other plans of the same choices."""
    return hashlib.sha256(f"imported by {__version__} for {arch} with {sm_count}".encode()).hexdigest()
