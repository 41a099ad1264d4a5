"""A seed draws passages of both languages; a change of one file leaves the draw from the others alone."""

from __future__ import annotations

from pathlib import Path

from tools.checks.draw_passages import drawn

_WORDS = "This comment has more words than are asked for"


def _write(root: Path, changed: str = "") -> None:
    folder = root / "lowdnn"
    folder.mkdir(exist_ok=True)
    for name in "abcdef":
        comments = "\n\n".join(f"{{0}} {_WORDS}: {name}{number}." for number in range(6)) + "\n"
        (folder / f"{name}.py").write_text(comments.replace("{0}", "#"))
        (folder / f"{name}.cu").write_text(comments.replace("{0}", "//"))
    if changed:
        (folder / changed).write_text("# Short.\n")


def test_a_seed_draws_half_from_each_language(tmp_path: Path) -> None:
    _write(tmp_path)
    found = drawn(tmp_path, 1, 10)
    assert found == drawn(tmp_path, 1, 10) != drawn(tmp_path, 2, 10)
    assert sum(place.split(":")[0].endswith(".py") for place, _ in found) == 5
    for place, text in found:
        file, line = place.split(":")
        assert (tmp_path / file).read_text().splitlines()[int(line) - 1].split(" ", 1)[1] == text


def test_a_change_of_a_file_leaves_the_others_draw(tmp_path: Path) -> None:
    _write(tmp_path)
    before = drawn(tmp_path, 1, 10)
    _write(tmp_path, "a.py")
    after = drawn(tmp_path, 1, 10)
    assert {found for found in before if not found[0].startswith("lowdnn/a.py")} <= {*after}
