"""Calibration of the emulated device: what a GPU gives for micro-kernels, and whether the emulated device agrees.

    PYTHONPATH=. python tools/calibrate.py record [FAMILY...] [--out DIR]    run the cases on the GPU, store the results
    PYTHONPATH=. python tools/calibrate.py check [FAMILY...] [--data DIR]    run them on the emulated device, compare

``check`` prints one line for each family: cases, values, those that equal the GPU's bit for bit, those within the bound
that the case states, and wrong ones. Its exit code is 1 if any value is wrong. Cases, rules and recordings lie in
tests/calibration.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.calibration.comparison import Verdict, compare
from tests.calibration.families import FAMILIES
from tests.calibration.recording import record
from tests.calibration.running import opened
from tests.calibration.store import DATA, load, path_of, save

#: Wrong outputs that are described for each family.
_SHOWN = 20


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    recorder = commands.add_parser("record", help="on the GPU")
    recorder.add_argument("families", nargs="*", metavar="FAMILY")
    recorder.add_argument("--out", type=Path, default=DATA)
    checker = commands.add_parser("check", help="on the emulated device")
    checker.add_argument("families", nargs="*", metavar="FAMILY")
    checker.add_argument("--data", type=Path, default=DATA)
    arguments = parser.parse_args()
    families = arguments.families or list(FAMILIES)
    unknown = sorted(set(families) - set(FAMILIES))
    if unknown:
        parser.error(f"families: expected some of {', '.join(FAMILIES)}, got {', '.join(unknown)}")
    if arguments.command == "record":
        return _record(families, arguments.out)
    return _check(families, arguments.data)


def _record(families: Sequence[str], directory: Path) -> int:
    def one(family: str) -> None:
        recording = record(FAMILIES[family])
        save(recording, path_of(family, directory))
        print(f"{family}: {len(recording.digests)} cases recorded, {len(recording.skipped)} skipped", flush=True)
        for name, reason in recording.skipped.items():
            print(f"  {name}: {reason[:300]}", flush=True)

    with ThreadPoolExecutor(max_workers=8) as pool:
        list(pool.map(one, families))
    return 0


def _check(families: Sequence[str], directory: Path) -> int:
    print(f"{'family':12} {'cases':>6} {'values':>9} {'bit-exact':>9} {'in bound':>9} {'wrong':>6} {'of bound':>9}")
    wrong = 0
    sources = set()
    for family in families:
        recording = load(path_of(family, directory))
        sources.add(f"{recording.device}, driver {recording.driver_version}, {recording.date}")
        with opened("emulated") as driver:
            verdicts = [verdict for case in FAMILIES[family]() for verdict in compare(case, recording, driver)]
        wrong += _report(family, verdicts)
    print("recorded on " + "; ".join(sorted(sources)))
    return 1 if wrong else 0


def _report(family: str, verdicts: Sequence[Verdict]) -> int:
    """Prints the family's line and its wrong outputs; the number of wrong values."""
    exact, within, wrong = (sum(getattr(v, part) for v in verdicts) for part in ("exact", "within", "wrong"))
    cases = len({v.case for v in verdicts})
    worst = max((v.worst for v in verdicts if not v.wrong), default=0.0)
    print(f"{family:12} {cases:6} {exact + within + wrong:9} {exact:9} {within:9} {wrong:6} {worst:9.2f}")
    failures = [v for v in verdicts if v.wrong]
    for verdict in failures[:_SHOWN]:
        print(f"  {verdict.case} {verdict.label}: {verdict.wrong} wrong; {verdict.detail}")
    if len(failures) > _SHOWN:
        print(f"  and {len(failures) - _SHOWN} outputs more")
    return wrong


if __name__ == "__main__":
    sys.exit(main())
