"""Pictures of runs, drawn with matplotlib (``pip install lowdnn[plot]``): roofline, shares or changes by class, trend.

A picture is an SVG file whose bytes follow from its run alone. It is None where the run has nothing to show in it.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from lowdnn.bench.floor import Card
from lowdnn.bench.report import summaries
from lowdnn.bench.runs import BenchClock, CaseTimes, Run
from lowdnn.bench.verdicts import Verdict, times_by_case
from lowdnn.enums import DataType
from lowdnn.one_line import one_line
from lowdnn.status import SublibraryUnavailableError

#: Colours of the largest classes: matplotlib's, without its grey.
_COLOURS = ("C0", "C1", "C2", "C3", "C4", "C5", "C6", "C8", "C9")
_GREY = "#9a9a9a"
_SIZE = (10.0, 6.0)
#: Inches of a row of a picture by class.
_ROW = 0.3


def check_installed() -> None:
    """Raises SublibraryUnavailableError where there is no matplotlib."""
    _matplotlib("matplotlib.figure")


def write(figure: Any, path: Path) -> None:
    """Saves the picture as an SVG file."""
    matplotlib = _matplotlib("matplotlib")
    path.parent.mkdir(parents=True, exist_ok=True)
    with matplotlib.rc_context({"svg.hashsalt": "lowdnn", "svg.fonttype": "none"}):
        figure.savefig(path, format="svg", metadata={"Date": None}, bbox_inches="tight")


def roofline(run: Run, card: Card) -> Any:
    """Arithmetic per second against arithmetic per byte moved, under the rates that the card sustains."""
    timed = [each for each in run.times if each.us and each.flops and each.bytes]
    if not timed:
        return None
    figure, axes = _figure(_SIZE)
    for colour, name, members in _coloured(timed):
        axes.scatter(
            [each.flops / each.bytes for each in members],
            [each.flops / each.us * 1e-6 for each in members],
            s=14,
            color=colour,
            label=name,
            zorder=3,
        )
    intensities = [each.flops / each.bytes for each in timed]
    first, last = min(intensities) / 2, max(intensities) * 16
    peak = max(card.flops.values())
    _roof(axes, card, peak, first, last, "fp8, int8")
    _roof(axes, card, card.flops[DataType.BFLOAT16], first, last, "bf16, fp16")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("arithmetic of products per byte moved (FLOP/B)")
    axes.set_ylabel("arithmetic per second (TFLOP/s)")
    _finish(axes, f"Roofline, {_title(run)}")
    return figure


def shares(run: Run) -> Any:
    """By class the share of the least time in the time: a dot at the geometric mean, a line to the worst case."""
    known = [(each.name, each.share, each.worst) for each in summaries(run.times) if each.share and each.worst]
    return _by_class(known, f"Least time / time by class, {_title(run)}", "least time / time")


def changes(run: Run, verdicts: Iterable[Verdict]) -> Any:
    """By class the ratio before / after: a dot at the geometric mean, a line to the worst case."""
    classes = {each.case: each.class_ for each in run.times}
    ratios: dict[str, list[float]] = {}
    for verdict in verdicts:
        if verdict.before_us and verdict.case in classes:
            ratios.setdefault(classes[verdict.case], []).append(verdict.before_us / verdict.after_us)
    known = [(name, statistics.geometric_mean(found), min(found)) for name, found in ratios.items()]
    return _by_class(known, f"Time before / time now by class, {_title(run)}", "time before / time now")


def trend(runs: Sequence[Run]) -> Any:
    """By class the times of the runs on the device and clock of the last one, relative to the first of them.

    A point is the geometric mean over the cases that all of these runs have.
    """
    last = runs[-1]
    alike = [run for run in runs if (run.device, run.clock) == (last.device, last.clock)]
    common = {case for case, times in times_by_case(alike).items() if len(times) == len(alike)}
    if len(alike) == 1 or not common:
        return None
    figure, axes = _figure(_SIZE)
    for colour, name, members in _coloured(each for each in last.times if each.case in common):
        cases = [each.case for each in members]
        first = _mean_us(alike[0], cases)
        axes.plot(range(len(alike)), [_mean_us(run, cases) / first for run in alike], "o-", color=colour, label=name)
    axes.axhline(1.0, color="#444", linewidth=0.8)
    axes.set_xticks(range(len(alike)), [_label(run) for run in alike], rotation=30, ha="right")
    axes.set_ylabel("time / time of the first run")
    _finish(axes, f"Trend, {_title(last)}")
    return figure


def _by_class(known: Sequence[tuple[str, float, float]], title: str, label: str) -> Any:
    """known: (name, mean, worst) of each class."""
    if not known:
        return None
    figure, axes = _figure((_SIZE[0], 1.5 + _ROW * len(known)))
    places = range(len(known))
    axes.hlines(places, [worst for *_, worst in known], [mean for _, mean, _ in known], color=_GREY)
    axes.scatter([mean for _, mean, _ in known], places, s=28, zorder=3)
    axes.set_yticks(places, [name for name, *_ in known], fontsize=8)
    axes.invert_yaxis()
    axes.axvline(1.0, color="#444", linewidth=0.8)
    axes.set_xlabel(f"{label} (dot: geometric mean, line: to the worst case)")
    axes.set_title(title)
    axes.grid(axis="x", alpha=0.3)
    return figure


def _roof(axes: Any, card: Card, peak: float, first: float, last: float, name: str) -> None:
    """The lesser of the memory's and the arithmetic's limit, in TFLOP/s."""
    ridge = peak / card.copy_bytes_per_s
    corners = sorted({first, min(max(ridge, first), last), last})
    limits = [min(peak, corner * card.copy_bytes_per_s) * 1e-12 for corner in corners]
    axes.plot(corners, limits, color="#444", linewidth=1.0)
    axes.annotate(name, (corners[-1], limits[-1]), textcoords="offset points", xytext=(-4, 4), ha="right", fontsize=8)


def _coloured(times: Iterable[CaseTimes]) -> list[tuple[Any, str, list[CaseTimes]]]:
    """(colour, name, cases) of the classes with the most cases; the others together in grey."""
    groups: dict[str, list[CaseTimes]] = {}
    for each in times:
        groups.setdefault(each.class_, []).append(each)
    order = sorted(groups, key=lambda name: -len(groups[name]))
    found: list[tuple[Any, str, list[CaseTimes]]] = [
        (colour, name, groups[name]) for colour, name in zip(_COLOURS, order, strict=False)
    ]
    others = [each for name in order[len(_COLOURS) :] for each in groups[name]]
    return [*found, (_GREY, "others", others)] if others else found


def _mean_us(run: Run, cases: Iterable[str]) -> float:
    by_case: Mapping[str, CaseTimes] = run.by_case
    return statistics.geometric_mean(by_case[case].us for case in cases)


def _label(run: Run) -> str:
    return _plain(f"{run.time[:10]} {run.commit[:8] or run.lowdnn}")


def _plain(text: str) -> str:
    """The text in the way that matplotlib shows it as it is: a pair of dollar signs would hold mathematics."""
    return one_line(text).replace("$", r"\$")


def _title(run: Run) -> str:
    return f"{_plain(run.device)} ({'times' if run.clock is BenchClock.EVENTS else 'counted instructions, no times'})"


def _finish(axes: Any, title: str) -> None:
    axes.set_title(title)
    axes.grid(alpha=0.3)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize=7, loc="upper left", bbox_to_anchor=(1.01, 1.0), borderaxespad=0.0)


def _figure(size: tuple[float, float]) -> tuple[Any, Any]:
    figure = _matplotlib("matplotlib.figure").Figure(figsize=size)
    return figure, figure.add_subplot()


def _matplotlib(module: str) -> Any:
    try:
        return import_module(module)
    except ImportError:
        raise SublibraryUnavailableError.at(
            "bench.plot", expected="matplotlib", got="none", hint="pip install 'lowdnn[plot]'"
        ) from None
