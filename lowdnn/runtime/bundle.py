"""Bundles: kernels and choices of plans in one file, made where there is a compiler and used where there is none.

    lowdnn-bundle 1 <sha256 of the index> <bytes of the index>
    {"lowdnn_bundle": 1, "lowdnn": "0.2.0", "arch": "sm_90a", "sm_count": 132, "compiler": ...,
     "images": [{"class": "ImageRecord", ...}...], "plans": [{"class": "BundledPlan", ...}...]}
    <the images, one after the other>

An image is found by the digest of its kernel's whole source, as in the store of precompiled PTX, so that a kernel that
has changed is never served an old one. A plan is no more than an engine and its choices: whoever takes it makes the
plan from the graph at hand and compares its digest. So the images are what a bundle is trusted for.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any, Protocol, TypeVar

from lowdnn import __version__
from lowdnn.arch.specs import spec_from_outside
from lowdnn.codec import Codec, encode
from lowdnn.documents import check_name, read_document, shown, write_document
from lowdnn.runtime.cache_files import MAX_ENTRY_BYTES
from lowdnn.status import ArchMismatchError, BadParamError, DuplicatedEntriesError, SerializationVersionMismatchError

T = TypeVar("T")

#: Version of the file's form. A reader refuses other versions.
BUNDLE_VERSION = 1
#: The output of PTX; that of machine code is its architecture, such as ``sm_90a``.
PTX = "ptx"

DIGEST = re.compile("[0-9a-f]{64}")
DIGEST_RULE = "64 hexadecimal digits"

_MAGIC = "lowdnn-bundle"
_HEADER = re.compile(rb"lowdnn-bundle ([1-9]\d{0,8}) ([0-9a-f]{64}) ([1-9]\d{0,11})\n")
#: More bytes than a header has.
_MOST_HEADER_BYTES = 128
_OUTPUT = re.compile(rf"{PTX}|sm_\d{{2,3}}[af]?")
_FIELDS = {"lowdnn": str, "arch": str, "sm_count": int, "compiler": str, "images": list, "plans": list}


@dataclass(frozen=True)
class BundledImage:
    """An image of a kernel. source: ``KernelSource.digest``.  output: ``ptx``, or the architecture of machine code.

    kernel: its name, for readers.
    """

    source: str
    output: str
    kernel: str
    data: bytes | memoryview = field(repr=False)


@dataclass(frozen=True)
class BundledPlan:
    """The choice for a graph. graph: ``OperationGraph.key``.  choices: names and values of knobs.

    plan: the digest of the plan that follows from them (``heuristics.bundled_plans``).
    structure, extents: by which graphs of other shapes find the choice (``heuristics.kernels_at_hand``).
    case: the graph as a text case, for readers and for whoever checks the bundle; empty where it is too long for a
    document.
    """

    graph: str
    engine: str
    choices: tuple[tuple[str, int], ...]
    plan: str
    structure: str
    extents: tuple[int, ...]
    case: str


class Shipped(Protocol):
    """Images and choices of plans that were made elsewhere, for one kind of device."""

    def image(self, source: str, output: str) -> bytes | None:
        """The image of the kernel whose source has this digest."""

    def has_image(self, source: str, output: str) -> bool:
        """Whether ``image`` has one."""

    def plan(self, graph: str) -> BundledPlan | None:
        """The choice for the graph with this key."""

    def plans_like(self, structure: str) -> Sequence[BundledPlan]:
        """The choices for graphs of this structure."""


@dataclass(frozen=True)
class Bundle:
    """Images and plans for devices with the architecture ``arch`` and ``sm_count`` multiprocessors.

    compiler: the build of NVRTC that made the images.
    Raises DuplicatedEntriesError for two images of a kernel with one output, and for two plans of a graph.
    """

    arch: str
    sm_count: int
    compiler: str
    images: tuple[BundledImage, ...] = field(repr=False)
    plans: tuple[BundledPlan, ...] = field(repr=False)

    def __post_init__(self) -> None:
        _check_distinct("images", ((image.source, image.output) for image in self.images))
        _check_distinct("plans", (plan.graph for plan in self.plans))

    def image(self, source: str, output: str) -> bytes | None:
        found = self._images.get((source, output))
        return None if found is None else bytes(found.data)

    def has_image(self, source: str, output: str) -> bool:
        return (source, output) in self._images

    def plan(self, graph: str) -> BundledPlan | None:
        return self._plans.get(graph)

    def plans_like(self, structure: str) -> Sequence[BundledPlan]:
        return self._plans_by_structure.get(structure, ())

    def check_device(self, arch: str, sm_count: int) -> None:
        """Raises ArchMismatchError unless the bundle is for a device with these facts."""
        for name, wanted in (("arch", arch), ("sm_count", sm_count)):
            found = getattr(self, name)
            if found != wanted:
                hint = f"export it with --arch {arch} --sm-count {sm_count}"
                raise ArchMismatchError.at(f"bundle.{name}", expected=f"{wanted}, as this device", got=found, hint=hint)

    @cached_property
    def _images(self) -> dict[tuple[str, str], BundledImage]:
        return {(image.source, image.output): image for image in self.images}

    @cached_property
    def _plans(self) -> dict[str, BundledPlan]:
        return {plan.graph: plan for plan in self.plans}

    @cached_property
    def _plans_by_structure(self) -> dict[str, list[BundledPlan]]:
        return by_structure(self.plans)


@dataclass(frozen=True)
class ImageRecord:
    """An image in the index of a file."""

    source: str
    output: str
    kernel: str
    size_bytes: int
    sha256: str


def bundle_bytes(bundle: Bundle) -> bytes:
    """The content of the file of a bundle. Equal bundles give equal bytes."""
    records = tuple(
        ImageRecord(image.source, image.output, image.kernel, len(image.data), hashlib.sha256(image.data).hexdigest())
        for image in bundle.images
    )
    index = write_document(
        "lowdnn_bundle",
        BUNDLE_VERSION,
        {
            "lowdnn": __version__,
            "arch": bundle.arch,
            "sm_count": bundle.sm_count,
            "compiler": bundle.compiler,
            "images": encode(records),
            "plans": encode(bundle.plans),
        },
    ).encode()
    header = f"{_MAGIC} {BUNDLE_VERSION} {hashlib.sha256(index).hexdigest()} {len(index)}\n".encode()
    return b"".join((header, index, *(image.data for image in bundle.images)))


def bundle_from(content: bytes, where: str) -> Bundle:
    """The bundle of a file's content, all of which is checked first.

    Raises SerializationVersionMismatchError for another version of the form or of lowdnn, ArchMismatchError for an
    unknown architecture, DuplicatedEntriesError, and BadParamError for whatever else is not as it was written, naming
    the place and the value.
    """
    index, begin = _index(content, where)
    fields = read_document(index, "lowdnn_bundle", BUNDLE_VERSION, _FIELDS, where)
    if fields["lowdnn"] != __version__:
        raise SerializationVersionMismatchError.at(
            f"{where}.lowdnn", expected=__version__, got=shown(fields["lowdnn"]), hint="export it with this version"
        )
    for name in ("arch", "compiler"):
        check_name(fields[name], f"{where}.{name}")
    spec_from_outside(fields["arch"], fields["sm_count"], where)
    records = _records(fields["images"], f"{where}.images")
    plans = plans_from(fields["plans"], f"{where}.plans")
    images = _images(records, memoryview(content)[begin:], where)
    return Bundle(fields["arch"], fields["sm_count"], fields["compiler"], images, plans)


def plans_from(items: Sequence[Any], where: str) -> tuple[BundledPlan, ...]:
    """The plans that ``encode`` gave ``items`` for. Raises BadParamError, naming the place, for anything else."""
    plans = _decoded(items, BundledPlan, where)
    for place, plan in enumerate(plans):
        for name in ("graph", "plan", "structure"):
            _check_form(getattr(plan, name), DIGEST, DIGEST_RULE, f"{where}[{place}].{name}")
        if min(plan.extents, default=0) < 0:
            raise BadParamError.at(f"{where}[{place}].extents", expected="no negative ones", got=list(plan.extents))
    return plans


def by_structure(plans: Iterable[BundledPlan]) -> dict[str, list[BundledPlan]]:
    """The plans by the structures of their graphs."""
    found: dict[str, list[BundledPlan]] = defaultdict(list)
    for plan in plans:
        found[plan.structure].append(plan)
    return dict(found)


def _index(content: bytes, where: str) -> tuple[bytes, int]:
    """The index, whose digest is right, and the place of the first image."""
    found = _HEADER.match(content, 0, _MOST_HEADER_BYTES)
    if found is None:
        expected = f"a file that begins with {_MAGIC}, a version, a digest and a length"
        raise BadParamError.at(where, expected=expected, got=shown(content[:32]))
    if int(found[1]) != BUNDLE_VERSION:
        raise SerializationVersionMismatchError.at(
            f"{where}.lowdnn_bundle", expected=BUNDLE_VERSION, got=int(found[1]), hint="export it with this version"
        )
    begin = found.end() + int(found[3])
    if begin > len(content):
        raise BadParamError.at(where, expected=f"at least {begin} bytes, as its header says", got=len(content))
    index = content[found.end() : begin]
    _check_digest(index, found[2].decode(), f"{where}.index")
    return index, begin


def _images(records: Sequence[ImageRecord], content: memoryview, where: str) -> tuple[BundledImage, ...]:
    needed_bytes = sum(record.size_bytes for record in records)
    if needed_bytes != len(content):
        raise BadParamError.at(f"{where}.images", expected=f"{needed_bytes} bytes in all", got=len(content))
    images, begin = [], 0
    for place, record in enumerate(records):
        data = content[begin : begin + record.size_bytes]
        _check_digest(data, record.sha256, f"{where}.images[{place}]")
        images.append(BundledImage(record.source, record.output, record.kernel, data))
        begin += record.size_bytes
    return tuple(images)


@cache
def _codec() -> Codec:
    return Codec((ImageRecord, BundledPlan), ())


def _decoded(items: Sequence[Any], kind: type[T], where: str) -> tuple[T, ...]:
    return tuple(_codec().decode(item, kind, f"{where}[{place}]") for place, item in enumerate(items))


def _records(items: Sequence[Any], where: str) -> tuple[ImageRecord, ...]:
    records = _decoded(items, ImageRecord, where)
    for place, record in enumerate(records):
        for name in ("source", "sha256"):
            _check_form(getattr(record, name), DIGEST, DIGEST_RULE, f"{where}[{place}].{name}")
        _check_form(record.output, _OUTPUT, f"{PTX} or an architecture", f"{where}[{place}].output")
        if not 0 < record.size_bytes <= MAX_ENTRY_BYTES:
            expected = f"1 to {MAX_ENTRY_BYTES}"
            raise BadParamError.at(f"{where}[{place}].size_bytes", expected=expected, got=record.size_bytes)
    return records


def _check_form(text: str, form: re.Pattern[str], rule: str, where: str) -> None:
    if not form.fullmatch(text):
        raise BadParamError.at(where, expected=rule, got=shown(text))


def _check_digest(data: bytes | memoryview, digest: str, where: str) -> None:
    found = hashlib.sha256(data).hexdigest()
    if found != digest:
        raise BadParamError.at(where, expected=f"sha256 {digest}", got=found, hint="the file is damaged")


def _check_distinct(what: str, names: Iterable[object]) -> None:
    repeated = [name for name, count in Counter(names).items() if count > 1]
    if repeated:
        raise DuplicatedEntriesError.at(f"bundle.{what}", expected="each once", got=shown(repeated[0]))
