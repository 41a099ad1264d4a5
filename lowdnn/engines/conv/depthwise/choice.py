"""The choice of the kernels for a depthwise convolution: those with the least estimated time."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from types import ModuleType

from lowdnn.arch.specs import ArchSpec
from lowdnn.engines.base import Knob
from lowdnn.engines.conv.depthwise import filter_gradient, filter_lines, filter_planes, lines, lines_mma, planes, rows
from lowdnn.engines.conv.depthwise.correlation import Correlation
from lowdnn.engines.conv.depthwise.filter_gradient import FilterGradient
from lowdnn.engines.conv.depthwise.filter_lines import LineFilterGradient
from lowdnn.engines.conv.depthwise.filter_planes import PlaneFilterGradient
from lowdnn.engines.conv.depthwise.geometry import DepthwiseGeometry
from lowdnn.engines.conv.depthwise.line_axes import LineGeometry
from lowdnn.engines.conv.depthwise.lines import LineCorrelation
from lowdnn.engines.conv.depthwise.lines_mma import LineProduct
from lowdnn.engines.conv.depthwise.planes import PlaneCorrelation
from lowdnn.engines.gemm.epilogue_reductions import NO_REDUCTIONS, EpilogueReductions
from lowdnn.ops.convolution_backward_data import ConvolutionBackwardData
from lowdnn.ops.convolution_backward_filter import ConvolutionBackwardFilter

#: Fewest images for which a walk along the images may be faster (measured).
_LEAST_IMAGES = 16
#: Most positions of a response for which a walk along the images may be faster (measured).
_MOST_POSITIONS = 28 * 28
#: A walk along images is chosen if its estimate is less than this share of the other kernel's; the two models differ in
#: their errors.
_WALK_SHARE = 0.85

Gradient = FilterGradient | PlaneFilterGradient | LineFilterGradient
Line = LineCorrelation | LineProduct | LineFilterGradient
Problem = Correlation | PlaneCorrelation | LineCorrelation | LineProduct | Gradient

#: The module that plans each kind of problem.
PLANNERS: Mapping[type, ModuleType] = {
    Correlation: rows,
    PlaneCorrelation: planes,
    LineCorrelation: lines,
    LineProduct: lines_mma,
    FilterGradient: filter_gradient,
    PlaneFilterGradient: filter_planes,
    LineFilterGradient: filter_lines,
}


def problem_of(geometry: DepthwiseGeometry, reductions: EpilogueReductions, arch: ArchSpec) -> Problem | str:
    """The problem of the kernels with the least estimated time, or why there are none."""
    other = _grid_problem(geometry, reductions, arch)
    fastest = min(_line_problems(geometry, reductions), key=lambda line: _estimated_s(line, arch), default=None)
    if fastest is None:
        return other
    return fastest if isinstance(other, str) or _estimated_s(fastest, arch) < _estimated_s(other, arch) else other


def knobs_of(problem: Problem, arch: ArchSpec) -> tuple[Knob, ...]:
    found: tuple[Knob, ...] = PLANNERS[type(problem)].knobs(problem, arch)
    return found


def _line_problems(geometry: DepthwiseGeometry, reductions: EpilogueReductions) -> tuple[Line, ...]:
    """The problems of kernels that need taps along one axis only."""
    placed = LineGeometry.of(geometry)
    if isinstance(placed, str) or reductions is not NO_REDUCTIONS:
        return ()
    problems: tuple[Line, ...] = (LineCorrelation(geometry, placed), LineProduct(geometry, placed))
    if isinstance(geometry.operation, ConvolutionBackwardFilter):
        problems = (LineFilterGradient(geometry, placed),)
    return tuple(problem for problem in problems if not problem.refuse())


def _grid_problem(geometry: DepthwiseGeometry, reductions: EpilogueReductions, arch: ArchSpec) -> Problem | str:
    """The problem of the kernels that walk along planes or down the rows, or why there is none."""
    is_filter = isinstance(geometry.operation, ConvolutionBackwardFilter)
    walk = PlaneFilterGradient(geometry.along_columns) if is_filter else PlaneCorrelation(geometry.along_columns)
    can_walk = reductions is NO_REDUCTIONS and not walk.refuse()
    if can_walk and not geometry.has_single_planes:
        return walk
    problem = FilterGradient(geometry) if is_filter else Correlation(geometry, reductions)
    reason = problem.refuse()
    if reason:
        return reason
    may_pay = can_walk and _may_walk_along_images(geometry)
    return walk if may_pay and _estimated_s(walk, arch) < _WALK_SHARE * _estimated_s(problem, arch) else problem


def _may_walk_along_images(geometry: DepthwiseGeometry) -> bool:
    """Whether images are many and small, in a filter gradient without strides or a data gradient with strides
    (measured).
    """
    has_strides = any(axis.stride > 1 for axis in geometry.axes)
    directed = ConvolutionBackwardData if has_strides else ConvolutionBackwardFilter
    is_small = prod(axis.response for axis in geometry.axes) <= _MOST_POSITIONS
    return isinstance(geometry.operation, directed) and is_small and geometry.images >= _LEAST_IMAGES


def _estimated_s(problem: Problem, arch: ArchSpec) -> float:
    """Estimated seconds with the fastest tile."""
    planner = PLANNERS[type(problem)]
    seconds: float = planner.estimated_s(problem, planner.best_tile(problem, arch), arch)
    return seconds
