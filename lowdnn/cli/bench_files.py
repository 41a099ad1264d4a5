"""The files of ``lowdnn bench``: places are looked at before the timing, and written after it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from lowdnn.bench import plots
from lowdnn.bench.floor import Card
from lowdnn.bench.runs import Run, save, saved_runs, write_csv
from lowdnn.bench.verdicts import Verdict
from lowdnn.runtime.shared_files import check_changeable
from lowdnn.status import BadParamError, LowdnnError

_PROBE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC


#: (option, its place, what is done there).
_Task = tuple[str, Path | None, Callable[[Path], object]]


@dataclass(frozen=True)
class BenchFiles:
    """Where a run is kept: as rows, in a file of saved runs, as pictures in a folder; each may be None.

    earlier: the saved runs that a trend begins with, oldest first.
    """

    csv: Path | None
    runs: Path | None
    pictures: Path | None
    earlier: tuple[Run, ...]

    @classmethod
    def checked(cls, csv: str | None, runs: str | None, pictures: str | None, base: list[Run]) -> BenchFiles:
        """The places of the options, after a look at each: folders are made, and no file is left behind.

        base: the runs of ``--compare``. Raises BadParamError for a place that cannot be written or has a file of
        another kind, SublibraryUnavailableError for pictures without matplotlib.
        """
        csv_file, runs_file, folder = (None if text is None else Path(text) for text in (csv, runs, pictures))
        _attempt("csv", csv_file, _check_rows)
        _attempt("save", runs_file, check_changeable)
        _attempt("plot", folder, _check_folder)
        saved = saved_runs(runs_file) if runs_file is not None and runs_file.exists() else []
        return cls(csv_file, runs_file, folder, tuple(base or saved))

    def check_pictures(self, card: Card | None) -> None:
        """Raises BadParamError where there would be no picture. card: the facts of the device's board, if known."""
        if self.pictures is not None and card is None and not self.earlier:
            raise _nothing_to_draw("neither")

    def write(self, run: Run, verdicts: list[Verdict] | None, card: Card | None) -> list[Path]:
        """Keeps the run in each place, as far as it goes; returns the files.

        Raises BadParamError for the first place that cannot be written, and for no picture, once all are tried.
        """
        tasks: list[_Task] = [("csv", self.csv, partial(write_csv, run)), ("save", self.runs, partial(save, run))]
        if self.pictures is not None:
            figures = dict(_figures(run, verdicts, self.earlier, card))
            tasks += [
                ("plot", self.pictures / f"{name}.svg", partial(plots.write, each)) for name, each in figures.items()
            ]
        errors = [error for task in tasks if (error := _failure(task))]
        if self.pictures is not None and not figures:
            errors.append(_nothing_to_draw("no such case"))
        for error in errors:
            raise error
        return [place for _, place, _ in tasks if place is not None]


def _figures(
    run: Run, verdicts: list[Verdict] | None, earlier: tuple[Run, ...], card: Card | None
) -> Iterator[tuple[str, Any]]:
    """The pictures that have something to show, by their names."""
    figures = {
        "roofline": None if card is None else plots.roofline(run, card),
        "shares": plots.shares(run),
        "changes": plots.changes(run, verdicts or []),
        "trend": plots.trend([*earlier, run]) if earlier else None,
    }
    yield from ((name, figure) for name, figure in figures.items() if figure is not None)


def _nothing_to_draw(got: str) -> LowdnnError:
    rule = "cases timed on a card whose rates are known, or saved runs of the same cases (--save, --compare)"
    return BadParamError.at("bench.plot", expected=rule, got=got, hint="nothing was drawn")


def _failure(task: _Task) -> LowdnnError | None:
    try:
        _attempt(*task)
    except LowdnnError as error:
        return error
    return None


def _attempt(option: str, place: Path | None, act: Callable[[Path], object]) -> None:
    """Acts on a place, if there is one; raises BadParamError, which names the option, where that does not go."""
    try:
        if place is not None:
            act(place)
    except LowdnnError:
        raise
    except (OSError, ValueError) as error:  # ValueError: the name is no path
        rule = "a place that can be written"
        raise BadParamError.at(f"bench.{option}", expected=rule, got=f"{place}: {error}") from None


def _check_rows(path: Path) -> None:
    is_new = not path.exists()
    os.close(os.open(path, _PROBE_FLAGS, 0o666))
    if is_new:
        path.unlink()


def _check_folder(path: Path) -> None:
    plots.check_installed()
    path.mkdir(parents=True, exist_ok=True)
    with TemporaryFile(dir=path):
        pass
