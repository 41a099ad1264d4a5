"""Times of the engines of convolution beside their peers, for layers of networks: the tables of the guide.

    python -m tools.bench.algorithms [--only SECTION] [--budget SECONDS] [--out CSV]

The engines of a case and its peers run in turns in one process on the same buffers, by graph replay
(``lowdnn/bench/timing.py``), and their results are compared. Peers are cuDNN channels-last and channels-first,
PyTorch's own kernels, and for filters as long as the sequence ``torch.fft`` and, where it is installed, the package
``subquadratic-ops-torch-cu13``; none of them uses TF32.

A line has the time, its ratio to the best peer's (above 1: faster than that), the workspace, and in sections of true
fp32 the error. The error is the root mean square of the differences from float64, in units of 2^-24 times the root of a
sum's terms, for factors of variance 1. ``chosen`` marks the engine that heuristics choose, in those sections in the
mode FALLBACK, and ``fastest`` the fastest engine. The exit status is 1 if an engine fails or disagrees with a peer.
"""

from __future__ import annotations

import argparse
import csv
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path

import torch

from lowdnn.backend.handle import Handle
from lowdnn.bench.floor import data_bytes
from lowdnn.cases import parse_case
from lowdnn.cases.families.convolution import ConvolutionCase
from lowdnn.engines.registry import engine_named
from lowdnn.enums import HeurMode, NumericalNote
from lowdnn.graph.graph import OperationGraph
from lowdnn.heuristics.ranking import Candidate, candidate_for
from lowdnn.plan import Plan
from lowdnn.runtime.timing import slots_for
from lowdnn.runtime.workspace import Workspace
from lowdnn.status import BadParamError, LowdnnError, NotSupportedError
from tools.bench.capture import Timed, timed
from tools.bench.data import CaseData, disagreement
from tools.bench.peers.catalog import configure
from tools.bench.peers.conv import (
    Peer,
    contiguous_peer,
    convolution_peers,
    exact_peer,
    spectral_peer,
    subquadratic_peer,
)

#: Winograd's results differ by so many times more, since it rounds sums of its operands.
_WINOGRAD_UNITS = 3


@dataclass(frozen=True)
class Section:
    """Cases whose engines are compared; the engine that heuristics choose is always among them.

    is_true_fp32: heuristics choose in the mode FALLBACK, and errors are measured.
    is_spectral: the peers are ``torch.fft`` and ``subquadratic_ops_torch``.
    """

    name: str
    engines: tuple[str, ...]
    cases: tuple[str, ...]
    is_true_fp32: bool = False
    is_spectral: bool = False

    @property
    def mode(self) -> HeurMode:
        return HeurMode.FALLBACK if self.is_true_fp32 else HeurMode.A


@dataclass(frozen=True)
class Layer:
    """A 3x3 layer with padding 1: images, channels, filters, and pixels of an axis."""

    n: int
    c: int
    k: int
    pixels: int

    def case(self, words: str) -> str:
        return f"conv n={self.n} c={self.c} hw={self.pixels}x{self.pixels} k={self.k} rs=3x3 pad=1 {words}"


_VGG = (
    Layer(32, 64, 64, 224),
    Layer(32, 64, 128, 112),
    Layer(32, 128, 128, 112),
    Layer(32, 128, 256, 56),
    Layer(32, 256, 256, 56),
    Layer(32, 256, 512, 28),
    Layer(32, 512, 512, 28),
    Layer(32, 512, 512, 14),
)
_RESNET = (Layer(32, 64, 64, 56), Layer(32, 128, 128, 28), Layer(32, 256, 256, 14), Layer(32, 512, 512, 7))
_UNET = (
    Layer(8, 64, 64, 256),
    Layer(8, 128, 128, 128),
    Layer(8, 256, 256, 64),
    Layer(8, 512, 512, 32),
    Layer(8, 1024, 512, 32),
    Layer(8, 1024, 1024, 16),
)
#: Stable Diffusion XL's UNet at 1024x1024 pixels, with and without guidance in one batch.
_SDXL = (
    Layer(2, 320, 320, 128),
    Layer(2, 960, 320, 128),
    Layer(2, 640, 640, 64),
    Layer(2, 1920, 640, 64),
    Layer(2, 1280, 1280, 32),
    Layer(2, 2560, 1280, 32),
)
#: Layers whose gradients are measured.
_WITH_GRADIENTS = (_VGG[2], _VGG[4], _VGG[7], *_RESNET[:3:2])

_WINOGRAD_FP32 = ("conv_winograd_2x2_fp32", "conv_winograd_4x4_fp32")
_TRUE_FP32 = ("conv_implicit_gemm_mma_tf32x3", *_WINOGRAD_FP32)
_FUSED_FP32 = "conv_winograd_fused_2x2_fp32"
_FORWARD_FP32 = ("conv_fprop_wgmma_tf32x3", *_TRUE_FP32, _FUSED_FP32)

_DEPTHWISE = "conv n=16 c=384 hw=56x56 k=384 rs={0}x{0} pad={1} groups=384 {2}"
_DENSE = "conv n=8 c=64 hw=64x64 k=64 rs={0}x{0} pad={1} {2}"
_LARGE_TAPS = (11, 15, 31)
_LARGE = tuple(
    shape.format(taps, taps // 2, f"dtype={data_type}")
    for taps in _LARGE_TAPS
    for shape, data_types in ((_DEPTHWISE, ("fp16", "bf16", "fp32")), (_DENSE, ("fp16", "fp32")))
    for data_type in data_types
)
#: A Hyena model's filters are as long as its sequences.
_HYENA = tuple(
    f"conv n=4 c=2048 hw={length} k=2048 rs={length} groups=2048 pad={length - 1}:0 dtype={data_type} layout=nchw"
    for length in (8192, 16384)
    for data_type in ("fp32", "bf16")
)

SECTIONS = (
    Section("vgg16", _FORWARD_FP32, tuple(layer.case("dtype=fp32") for layer in _VGG), is_true_fp32=True),
    Section("resnet50", _FORWARD_FP32, tuple(layer.case("dtype=fp32") for layer in _RESNET), is_true_fp32=True),
    Section("unet", _FORWARD_FP32, tuple(layer.case("dtype=fp32") for layer in _UNET), is_true_fp32=True),
    Section(
        "dgrad",
        ("conv_dgrad_wgmma_tf32x3", *_TRUE_FP32, _FUSED_FP32),
        tuple(layer.case("dir=dgrad dtype=fp32") for layer in _WITH_GRADIENTS),
        is_true_fp32=True,
    ),
    Section(
        "wgrad",
        ("conv_wgrad_wgmma_tf32x3", *_TRUE_FP32),
        tuple(layer.case("dir=wgrad dtype=fp32") for layer in _WITH_GRADIENTS),
        is_true_fp32=True,
    ),
    Section(
        "fp16",
        ("conv_winograd_2x2", "conv_winograd_4x4", "conv_winograd_fused_2x2"),
        (
            *(layer.case("dtype=fp16") for layer in (*_VGG[::3], *_RESNET[::2])),
            _RESNET[2].case("dir=wgrad dtype=bf16"),
        ),
    ),
    Section(
        "sdxl",
        ("conv_fprop_wgmma", "conv_winograd_2x2", "conv_winograd_4x4", "conv_winograd_fused_2x2"),
        tuple(layer.case("dtype=fp16") for layer in _SDXL),
    ),
    Section(
        "large",
        ("conv_fft", "conv_direct", "conv_fprop_wgmma", "conv_implicit_gemm_mma"),
        (*_LARGE, *(_DEPTHWISE.format(31, 15, f"dir={way} dtype=fp32") for way in ("dgrad", "wgrad"))),
    ),
    Section("hyena", ("conv_fft",), _HYENA, is_spectral=True),
)


@dataclass(frozen=True)
class Row:
    """An engine or a peer for one case; a peer has no workspace, estimate and knobs here.

    ratio: the best peer's time divided by this one, 0 without a peer.  error: None where it is not measured.
    disagreement: the difference from a peer that roundings do not explain, or "".
    """

    section: str
    case: str
    name: str
    us: float
    ratio: float
    workspace_bytes: int
    error: float | None
    estimated_us: float
    knobs: str
    is_chosen: bool
    is_fastest: bool
    disagreement: str

    def __str__(self) -> str:
        error = "" if self.error is None else f"{self.error:.3g}"
        marks = " ".join(word for word, holds in (("chosen", self.is_chosen), ("fastest", self.is_fastest)) if holds)
        mebibytes = self.workspace_bytes / 2**20
        line = f"  {self.name:32}{self.us:11.1f}{self.ratio:8.2f}{mebibytes:12.1f}{error:>10}  {marks}"
        return line.rstrip() + (f"\n    disagrees: {self.disagreement}" if self.disagreement else "")


HEADING = f"  {'engine or peer':32}{'us':>11}{'ratio':>8}{'MiB':>12}{'error':>10}"


@dataclass(frozen=True)
class Found:
    """A launch, the error of its result, and where it disagrees with a peer."""

    launch: Timed
    error: float | None
    disagreement: str = ""


@dataclass(frozen=True)
class Judge:
    """Results on the first copy of the data. exact: in float64; None where no error is measured. theirs: by peer."""

    case: ConvolutionCase
    data: CaseData
    exact: torch.Tensor | None
    theirs: dict[str, torch.Tensor] = field(default_factory=dict)

    def error(self, result: torch.Tensor) -> float | None:
        """See the module's docstring."""
        if self.exact is None:
            return None
        # The filter of the data is scaled by the root of the terms already; gradients of the filter have none.
        unit = 2.0**-24 * (self.case.length**0.5 if self.case.dir == "wgrad" else 1.0)
        return float((result.double().reshape(self.exact.shape) - self.exact).square().mean().sqrt()) / unit

    def disagreement(self, mine: torch.Tensor, plan: Plan) -> str:
        unit = self.data.unit
        if NumericalNote.WINOGRAD in plan.numerical_notes:
            unit = _WINOGRAD_UNITS * max(unit, torch.finfo(mine.dtype).eps)
        wrong = {name: disagreement(mine, result, unit) for name, result in self.theirs.items()}
        return "; ".join(f"{name}: {text}" for name, text in wrong.items() if text)


def main() -> int:
    options = _options()
    configure(allow_tf32=False)
    print(f"{torch.cuda.get_device_name(0)}, torch {torch.__version__}, cuDNN {torch.backends.cudnn.version()}")
    start, rows, failed = time.monotonic(), list[Row](), 0
    with Handle.open("cuda") as handle:
        for section, text in _cases(options.only):
            if time.monotonic() - start > options.budget:
                print(f"the time is up before {section.name}: {text}")
                break
            print(f"{section.name}: {text}\n{HEADING}", flush=True)
            try:
                found = rows_of(handle, section, text)
            except (LowdnnError, torch.cuda.OutOfMemoryError) as error:
                print(f"  ERROR {type(error).__name__}: {error}".splitlines()[0], flush=True)
                failed += 1
                continue
            print("\n".join(map(str, found)), flush=True)
            rows += found
            torch.cuda.empty_cache()
    if options.out is not None:
        _write(options.out, rows)
    return 1 if failed or any(row.disagreement for row in rows) else 0


def rows_of(handle: Handle, section: Section, text: str) -> list[Row]:
    """The engines that take the case, then the peers that run it. Raises LowdnnError where an engine fails."""
    case = parse_case(text)
    if not isinstance(case, ConvolutionCase):
        raise BadParamError.at("algorithms.case", expected="a convolution", got=text)
    graph = case.graph()
    data = CaseData(case, graph, slots_for(data_bytes(graph)))
    chosen = handle.rank(graph, section.mode).best
    candidates = _candidates(handle, graph, section, chosen)
    judge = Judge(case, data, _exact(case, data) if section.is_true_fp32 else None)
    peers = _peers(section, judge)
    with ExitStack() as stack:
        engines = {name: _engine(handle, candidate, judge, stack) for name, candidate in candidates.items()}
        judge.theirs.clear()
        found = engines | peers
        times = timed({name: entry.launch for name, entry in found.items()}, data.slots)
    best_peer_us = min((times[name].us for name in peers), default=0.0)
    fastest = min(engines, key=lambda name: times[name].us, default="")
    return [
        Row(
            section=section.name,
            case=text,
            name=name,
            us=round(times[name].us, 2),
            ratio=round(best_peer_us / times[name].us, 3),
            workspace_bytes=candidates[name].plan.workspace_bytes if name in candidates else 0,
            error=entry.error,
            estimated_us=round(candidates[name].estimated_us, 1) if name in candidates else 0.0,
            knobs=_knobs(candidates[name]) if name in candidates else "",
            is_chosen=chosen is not None and name == chosen.engine.name,
            is_fastest=name == fastest,
            disagreement=entry.disagreement,
        )
        for name, entry in found.items()
    ]


def _knobs(candidate: Candidate) -> str:
    return " ".join(f"{knob.name}={value}" for knob, value in candidate.plan.choices)


def _candidates(
    handle: Handle, graph: OperationGraph, section: Section, chosen: Candidate | None
) -> dict[str, Candidate]:
    """The heuristics' choice and the section's other engines that take the graph, with default knobs, by name."""
    found = {} if chosen is None else {chosen.engine.name: chosen}
    for name in section.engines:
        if name in found:
            continue
        try:
            found[name] = candidate_for(engine_named(name), graph, handle.arch, {})
        except NotSupportedError as error:
            print(f"  no engine {name}: {str(error).splitlines()[0]}")
    return found


def _engine(handle: Handle, candidate: Candidate, judge: Judge, stack: ExitStack) -> Found:
    """An engine that has run once on the first copy; ``stack`` closes its workspace."""
    loaded, data = handle.load(candidate.plan), judge.data
    workspace = stack.enter_context(Workspace(handle.runtime.context, candidate.plan.workspace_bytes))
    addresses = data.addresses(loaded.uids)

    def launch(slot: int) -> None:
        loaded.execute(addresses[slot], workspace.address, torch.cuda.current_stream().cuda_stream)

    data.forget_result()
    launch(0)
    torch.cuda.synchronize()
    mine = data.results()[0]
    return Found(launch, judge.error(mine), judge.disagreement(mine, candidate.plan))


def _peers(section: Section, judge: Judge) -> dict[str, Found]:
    """The peers that run the case; ``judge`` learns what each computes on the first copy."""
    found: dict[str, Found] = {}
    for name, peer in _peers_of(section, judge.case, judge.data).items():
        try:
            result = peer(0)
        except Exception as error:  # a peer may refuse a case in any way it likes; it is then no peer
            print(f"  no peer {name}: {error}".splitlines()[0])
            continue
        judge.theirs[name] = result
        found[name] = Found(peer, judge.error(result))
    return found


def _peers_of(section: Section, case: ConvolutionCase, data: CaseData) -> dict[str, Peer]:
    if section.is_spectral:
        peer = subquadratic_peer(case, data)
        return {"torch.fft": spectral_peer(case, data)} | ({} if peer is None else {"subquadratic_ops": peer})
    return {**convolution_peers(case, data), "cudnn nchw": contiguous_peer(case, data)}


def _exact(case: ConvolutionCase, data: CaseData) -> torch.Tensor:
    """The result of the first copy in float64, by whichever algorithm cuDNN takes first."""
    torch.backends.cudnn.benchmark = False
    try:
        return exact_peer(case, data)(0)
    finally:
        torch.backends.cudnn.benchmark = True


def _cases(only: list[str]) -> Iterator[tuple[Section, str]]:
    """The cases of the sections named, or of all."""
    for section in SECTIONS:
        if not only or section.name in only:
            yield from ((section, text) for text in section.cases)


def _write(path: Path, rows: list[Row]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, [column.name for column in fields(Row)])
        writer.writeheader()
        writer.writerows(asdict(row) for row in rows)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [section.name for section in SECTIONS]
    parser.add_argument("--only", action="append", default=[], choices=names, help="this section; may be repeated")
    parser.add_argument("--budget", type=float, default=float("inf"), metavar="SECONDS", help="begin no case after it")
    parser.add_argument("--out", type=Path, metavar="CSV", help="file of the rows")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
