"""Whose records count: the user's before the site's before the package's, and which of them do not hold."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from lowdnn.arch.specs import SM_80, SM_90A, SM_100, SM_120, ArchSpec, spec_for
from lowdnn.cases import parse_case
from lowdnn.config import Config
from lowdnn.engines.base import Choices
from lowdnn.engines.registry import ENGINES, engine_named
from lowdnn.enums import HeurMode, KnobType
from lowdnn.heuristics.ranking import Ranking, rank
from lowdnn.heuristics.tuning.record_books import Records, records_of, released_lines, released_records
from lowdnn.heuristics.tuning.record_files import RecordFile
from lowdnn.heuristics.tuning.records import NO_LIMIT, RecordClock, TuningRecord, device_label, short_key
from lowdnn.runtime.sources import SourceTree

GRAPH = parse_case("matmul m=256 n=256 k=256 dtype=bf16").graph()
MODES = [(HeurMode.A, True), (HeurMode.B, True), (HeurMode.FALLBACK, False), (HeurMode.INSTANT, False)]


@cache
def sources() -> SourceTree:
    return SourceTree()


@cache
def released() -> tuple[TuningRecord, ...]:
    return tuple(TuningRecord.of(line) for lines in released_lines().by_graph.values() for line in lines)


def record(choices: Choices, us: float, limit: int = NO_LIMIT, engine: str = "matmul_mma") -> TuningRecord:
    """A record of GRAPH with the revision of the kernels as they are."""
    plan = engine_named(engine).plan(GRAPH, SM_90A, choices)
    revision = Records((), sources=sources()).revision(plan)
    return TuningRecord(
        short_key(GRAPH), device_label(SM_90A), limit, engine, dict(plan.choices), us, revision=revision
    )


def tile(size: int) -> Choices:
    return {KnobType.TILE_M: size, KnobType.TILE_N: 64}


def records(user: Path, site: Path | None = None, *, takes_estimates: bool = False) -> Records:
    config = Config(tuning_path=(user,) if site is None else (user, site))
    return records_of(config, sources(), takes_estimates=takes_estimates)


def ranking(found: Records, arch: ArchSpec = SM_90A, mode: HeurMode = HeurMode.A) -> Ranking:
    return rank(GRAPH, arch, mode, ENGINES, found)


def test_released_records_are_plans_of_their_graphs_and_the_first_choices() -> None:
    assert released_lines().strange == 0
    for one in released():
        graph = parse_case(one.case).graph()
        best = rank(graph, SM_90A, HeurMode.A, ENGINES).best
        assert best is not None
        assert (short_key(graph), best.plan.engine, dict(best.plan.choices)) == (one.graph, one.engine, one.choices)


@pytest.mark.parametrize(("mode", "is_measured"), MODES)
def test_records_are_of_the_modes_that_ask_for_speed(mode: HeurMode, is_measured: bool) -> None:
    one = next(one for one in released() if one.engine == "norm_rows")
    best = rank(parse_case(one.case).graph(), SM_90A, mode, ENGINES).best
    assert best is not None
    assert best.engine.name == "norm_rows"
    assert ("measured" in best.reason) == is_measured


@pytest.mark.parametrize(
    "arch",
    [
        *(SM_80, SM_100, SM_120, spec_for(9, 1), SM_90A.with_sm_count(114)),
        SM_90A.with_product("NVIDIA H100 80GB HBM3"),
    ],
)
def test_records_are_of_one_device(arch: ArchSpec, tmp_path: Path) -> None:
    graph = parse_case(released()[0].case).graph()
    assert [found.record for found in released_records().of(graph, SM_90A)] == [released()[0]]
    assert released_records().of(graph, arch) == ()


def test_a_record_of_an_h100_is_none_of_an_h200(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    h100 = SM_90A.with_product("NVIDIA H100 80GB HBM3")
    RecordFile.in_directory(tmp_path).merge([replace(record({}, 1.0), device=device_label(h100))])
    found = records(tmp_path)
    with caplog.at_level(logging.INFO, "lowdnn.tuning"):
        for _ in range(2):
            best = ranking(found).best
            assert best is not None
            assert "estimated" in best.reason
    assert caplog.text.count("records_of_other_device") == 1
    best = ranking(found, h100).best
    assert best is not None
    assert "1.0 us measured" in best.reason


def test_a_record_comes_before_the_list_of_the_cost_model(tmp_path: Path) -> None:
    RecordFile.in_directory(tmp_path).merge([record(tile(64), 1.0)])
    measured, *others = ranking(records(tmp_path)).candidates
    estimated = ranking(records(tmp_path), mode=HeurMode.INSTANT).candidates
    assert (measured.engine.name, measured.estimated_us) == ("matmul_mma", 1.0)
    assert [found.reason for found in others] == [found.reason for found in estimated]


def test_records_of_several_workspace_limits_stand_in_the_order_of_their_times(tmp_path: Path) -> None:
    free, limited = record({KnobType.SPLIT_K_SLC: 4}, 1.0), record(tile(64), 2.0, limit=0)
    RecordFile.in_directory(tmp_path).merge([limited, free])
    first, unsplit, second, *_ = ranking(records(tmp_path)).candidates
    assert [first.plan.choices, second.plan.choices] == [tuple(one.choices.items()) for one in (free, limited)]
    assert first.plan.workspace_bytes > unsplit.plan.workspace_bytes == second.plan.workspace_bytes == 0


def test_the_user_has_the_say_before_the_site_and_the_site_before_the_package(tmp_path: Path) -> None:
    user, site = tmp_path / "user", tmp_path / "site"
    for directory, size, us in ((site, 128, 1.0), (user, 64, 2.0)):  # the site's would be faster
        RecordFile.in_directory(directory).merge([record(tile(size), us)])
    best = [ranking(records(*directories)).best for directories in ((user, site), (tmp_path / "none", site))]
    assert [dict(found.plan.choices)[KnobType.TILE_M] for found in best if found] == [64, 128]
    one = released()[0]
    RecordFile.in_directory(user).merge([replace(one, us=9e6)])
    (found,) = records(user, site).of(parse_case(one.case).graph(), SM_90A)
    assert (found.book.name, found.record.us) == (str(user), 9e6)


def test_a_record_that_is_added_counts_from_then_on(tmp_path: Path) -> None:
    found = records(tmp_path)
    before = ranking(found).best
    found.add([record(tile(64), 1.0)])
    after = ranking(found).best
    assert before is not None
    assert after is not None
    assert ("measured" in before.reason, "measured" in after.reason) == (False, True)


@pytest.mark.parametrize(
    ("change", "event"),
    [
        (lambda text: text.replace('"revision":"', '"revision":"0'), "record_outdated"),
        (lambda text: text.replace('"TILE_M":128', '"TILE_M":7'), "record_refused"),
        (lambda text: text.replace('"us":1.0', '"us":"quick"'), "record_damaged"),
        (lambda text: text.replace('{"lowdnn_record":1', '{"lowdnn_record":2'), "records_of_other_version"),
        (lambda text: text.replace('{"lowdnn_record":1', '{"lowdnn_record":x'), "records_damaged"),
    ],
)
def test_a_record_that_cannot_be_used_is_a_miss_told_once(
    change: Callable[[str], str], event: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    RecordFile.in_directory(tmp_path).merge([record(tile(128), 1.0)])
    path = tmp_path / "v1" / "records.jsonl"
    text = path.read_text()
    path.write_text(change(text))
    assert path.read_text() != text
    found = records(tmp_path)
    for _ in range(3):
        best = ranking(found).best
        assert best is not None
        assert "estimated" in best.reason
    assert [entry.getMessage().split()[0] for entry in caplog.records] == [event]


def test_a_directory_that_others_may_write_is_a_miss_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    RecordFile.in_directory(tmp_path).merge([record({}, 1.0)])
    tmp_path.chmod(0o777)
    found = records(tmp_path)
    assert [found.of(GRAPH, SM_90A) for _ in range(2)] == [(), ()]
    assert [entry.getMessage().split()[0] for entry in caplog.records] == ["records_refused"]


@pytest.mark.parametrize("takes_estimates", [False, True])
def test_estimates_count_on_the_emulated_device_alone(takes_estimates: bool, tmp_path: Path) -> None:
    RecordFile.in_directory(tmp_path).merge([replace(record({}, 1.0), clock=RecordClock.MODEL)])
    assert len(records(tmp_path, takes_estimates=takes_estimates).of(GRAPH, SM_90A)) == takes_estimates


def test_engines_that_are_not_asked_have_no_records() -> None:
    one = released()[0]
    engines = [engine for engine in ENGINES if engine is not engine_named(one.engine)]
    best = rank(parse_case(one.case).graph(), SM_90A, HeurMode.A, engines).best
    assert best is not None
    assert best.engine.name != one.engine


def test_threads_read_records_while_others_are_added(tmp_path: Path) -> None:
    found = records(tmp_path, takes_estimates=True)
    failures: list[BaseException] = []
    is_done = threading.Event()

    def read() -> None:
        try:
            while not is_done.is_set():
                assert sum(count for _, count in found.hints(SM_90A, "matmul_mma").items()) >= 0
                found.of(GRAPH, SM_90A)
        except BaseException as error:
            failures.append(error)

    def add(first: int) -> None:
        for number in range(5):
            found.keep([record(tile(64), 1.0, limit=first + number)])

    before = sum(found.hints(SM_90A, "matmul_mma").values())
    readers = [threading.Thread(target=read) for _ in range(2)]
    writers = [threading.Thread(target=add, args=(10 * number,)) for number in range(3)]
    for thread in (*readers, *writers):
        thread.start()
    for thread in writers:
        thread.join()
    is_done.set()
    for thread in readers:
        thread.join()
    assert failures == []
    assert sum(found.hints(SM_90A, "matmul_mma").values()) == before + 15
    assert len({one.record.workspace_limit for one in found.of(GRAPH, SM_90A)} - {NO_LIMIT}) == 15
