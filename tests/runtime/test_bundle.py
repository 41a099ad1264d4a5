"""Bundles as files: what is written is read, and nothing else is."""

from __future__ import annotations

import hashlib
import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import lowdnn.runtime.bundle_file as bundle_file
from lowdnn import __version__
from lowdnn.runtime.bundle import Bundle, BundledImage, BundledPlan, bundle_bytes, bundle_from
from lowdnn.runtime.bundle_file import load_bundle, write_bundle
from lowdnn.status import (
    ArchMismatchError,
    BadParamError,
    DuplicatedEntriesError,
    LowdnnError,
    SerializationVersionMismatchError,
    SizeInsufficientError,
)
from tests.support.data import fresh_seed
from tests.support.errors import raises

IMAGES = (
    BundledImage("a" * 64, "sm_90a", "first", b"\x7fELF machine code"),
    BundledImage("a" * 64, "ptx", "first", b".version 8.3\n"),
    BundledImage("b" * 64, "ptx", "second", bytes(range(256))),
)
PLANS = (
    BundledPlan("c" * 64, "matmul_mma", (("TILE_M", 64),), "d" * 64, "9" * 64, (1, 2, 3), "matmul m=1 n=2 k=3"),
    BundledPlan("e" * 64, "pointwise", (), "f" * 64, "9" * 64, (), ""),
)
BUNDLE = Bundle("sm_90a", 132, "NVRTC 13", IMAGES, PLANS)
CONTENT = bundle_bytes(BUNDLE)


def read(content: bytes) -> Bundle:
    return bundle_from(content, "file")


def is_refused(content: bytes) -> bool:
    try:
        read(content)
    except LowdnnError:
        return True
    return False


def changed(change: Callable[[dict[str, Any]], object]) -> bytes:
    """The file with another index, whose digest and length are right."""
    header, _, rest = CONTENT.partition(b"\n")
    length = int(header.split()[-1])
    fields = json.loads(rest[:length])
    change(fields)
    index = json.dumps(fields).encode()
    return f"lowdnn-bundle 1 {hashlib.sha256(index).hexdigest()} {len(index)}\n".encode() + index + rest[length:]


def test_what_is_written_is_read() -> None:
    found = read(CONTENT)
    assert found == BUNDLE
    assert bundle_bytes(found) == CONTENT
    assert found.image("a" * 64, "ptx") == b".version 8.3\n"
    assert found.image("b" * 64, "sm_90a") is None
    assert found.plan("e" * 64) == PLANS[1]
    assert found.plan("a" * 64) is None
    assert tuple(found.plans_like("9" * 64)) == PLANS
    assert tuple(found.plans_like("e" * 64)) == ()
    assert found.has_image("b" * 64, "ptx")
    assert not found.has_image("b" * 64, "sm_90a")


def test_a_bundle_is_for_one_kind_of_device() -> None:
    BUNDLE.check_device("sm_90a", 132)
    with raises(ArchMismatchError, "bundle.arch", expected="sm_80, as this device", got="sm_90a"):
        BUNDLE.check_device("sm_80", 132)
    with raises(ArchMismatchError, "bundle.sm_count", expected="114, as this device", got="132"):
        BUNDLE.check_device("sm_90a", 114)


@pytest.mark.parametrize(
    ("change", "error", "where", "expected", "got"),
    [
        (lambda f: f.update(lowdnn="9.9"), SerializationVersionMismatchError, "file.lowdnn", __version__, "'9.9'"),
        (lambda f: f.update(lowdnn_bundle=2), SerializationVersionMismatchError, "file.lowdnn_bundle", "1", "2"),
        (lambda f: f.update(arch="sm_1"), ArchMismatchError, "arch", "one of", "'sm_1'"),
        (lambda f: f.update(sm_count=0), BadParamError, "file.sm_count", "1 to 4096", "0"),
        (lambda f: f.update(compiler="a\nb"), BadParamError, "file.compiler", "without control", "'a\\nb'"),
        (lambda f: f.pop("plans"), BadParamError, "file", "the fields", "plans"),
        (lambda f: f["images"].pop(), BadParamError, "file.images", "30 bytes in all", "286"),
        (lambda f: f["images"][0].update(sha256="a" * 64), BadParamError, "file.images[0]", "sha256 aaaa", ""),
        (lambda f: f["images"][1].update(size_bytes=-1), BadParamError, "file.images[1].size_bytes", "1 to", "-1"),
        (lambda f: f["images"][1].update(output="../x"), BadParamError, "file.images[1].output", "ptx", "'../x'"),
        (lambda f: f["images"][2].update(source="b"), BadParamError, "file.images[2].source", "64 hexa", "'b'"),
        (lambda f: f["images"][2].update(kernel=3), BadParamError, "file.images[2].kernel", "", "3"),
        (lambda f: f["plans"][0].update(choices=[["A", 1.5]]), BadParamError, "file.plans[0].choices", "", "1.5"),
        (lambda f: f["plans"][0].update(graph="x"), BadParamError, "file.plans[0].graph", "64 hexa", "'x'"),
        (lambda f: f["plans"][1].update(structure=""), BadParamError, "file.plans[1].structure", "64 hexa", "''"),
        (lambda f: f["plans"][1].update(extents=[3, -1]), BadParamError, "file.plans[1].extents", "no negative", "-1"),
        (lambda f: f["plans"][0].update({"class": "Path"}), BadParamError, "file.plans[0]", "one of", "'Path'"),
        (lambda f: f["plans"].append(f["plans"][0]), DuplicatedEntriesError, "bundle.plans", "once", "cccc"),
    ],
)
def test_each_field_is_checked(
    change: Callable[[dict[str, Any]], object], error: type[LowdnnError], where: str, expected: str, got: str
) -> None:
    with raises(error, where, expected=expected, got=got):
        read(changed(change))


def test_an_image_twice_is_refused() -> None:
    with raises(DuplicatedEntriesError, "bundle.images", expected="each once"):
        Bundle("sm_90a", 132, "", (IMAGES[0], IMAGES[0]), ())


def test_other_files_are_refused() -> None:
    for content in (b"", b"PK\x03\x04", b"lowdnn-bundle\n", b"lowdnn-cache 1 x", CONTENT[1:]):
        with raises(BadParamError, "file", expected="begins with lowdnn-bundle"):
            read(content)
    with raises(SerializationVersionMismatchError, "file.lowdnn_bundle", expected="1", got="2"):
        read(CONTENT.replace(b"lowdnn-bundle 1", b"lowdnn-bundle 2"))


def test_every_length_but_the_right_one_is_refused() -> None:
    for length in range(len(CONTENT)):
        with pytest.raises(BadParamError):
            read(CONTENT[:length])
    with raises(BadParamError, "file.images", expected="286 bytes in all", got="287"):
        read(CONTENT + b"x")


def test_no_damage_goes_unseen() -> None:
    """Bytes that are changed, removed, added or moved: every byte of the file counts."""
    rng = random.Random(seed := fresh_seed())
    for _ in range(2000):
        content = bytearray(CONTENT)
        for _ in range(rng.randint(1, 3)):
            place = rng.randrange(len(content))
            match rng.randrange(4):
                case 0:
                    content[place] ^= 1 << rng.randrange(8)
                case 1:
                    del content[place : place + rng.randint(1, 40)]
                case 2:
                    content[place:place] = rng.randbytes(rng.randint(1, 40))
                case 3:
                    other = rng.randrange(len(content))
                    content[place], content[other] = content[other], content[place]
        if bytes(content) != CONTENT:
            assert is_refused(bytes(content)), f"seed {seed}"


VALUES = (
    None,
    True,
    -1,
    0,
    2**63,
    2**70,
    1.5,
    "",
    "x",
    "a" * 64,
    "ptx",
    "\x00",
    [],
    [[]],
    {},
    {"class": "ImageRecord"},
)


def test_an_index_of_any_values_is_read_or_refused() -> None:
    """Values in the place of others, with digests that are right: the file is refused, or means something."""
    rng = random.Random(fresh_seed())

    def mutate(value: Any) -> Any:
        if rng.random() < 0.05:
            return rng.choice(VALUES)
        if isinstance(value, dict):
            found = {name: mutate(item) for name, item in value.items() if rng.random() > 0.01}
            return found | ({"more": 1} if rng.random() < 0.01 else {})
        return [mutate(item) for item in value] if isinstance(value, list) else value

    refused = 0
    for _ in range(2000):
        content = changed(lambda fields: fields.update({name: mutate(value) for name, value in fields.items()}))
        if is_refused(content):
            refused += 1
        else:
            assert read(bundle_bytes(read(content))) == read(content)
    assert 1000 < refused < 2000


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A short path, which messages show whole."""
    monkeypatch.chdir(tmp_path)
    assert write_bundle("file", BUNDLE) == len(CONTENT)
    return Path("file")


def test_a_file_is_written_at_once_for_its_owner_to_write(path: Path) -> None:
    previous = os.umask(0)
    try:
        write_bundle(path, BUNDLE)
    finally:
        os.umask(previous)
    assert path.stat().st_mode & 0o777 == 0o644
    assert os.listdir(path.parent) == ["file"]
    assert load_bundle(path, trust=True) == BUNDLE
    with raises(BadParamError, "bundle 'none/x'", expected="a file that can be written", got="[Errno 2] No such"):
        write_bundle(path.parent / "none" / "x", BUNDLE)
    with pytest.raises(BadParamError):
        write_bundle(path.parent, BUNDLE)
    assert os.listdir(path.parent) == ["file"]


def test_trust_has_to_be_said(path: Path) -> None:
    for trust in (False, None, 1, "yes"):
        with raises(BadParamError, f"bundle '{path}': trust", expected="True", got=repr(trust)):
            load_bundle(path, trust=trust)  # type: ignore[arg-type]


@pytest.mark.parametrize("mode", [0o664, 0o646, 0o666])
def test_a_file_that_others_may_write_is_refused(path: Path, mode: int) -> None:
    path.chmod(mode)
    with raises(BadParamError, f"bundle '{path}': mode", expected="its owner alone may write", got=f"{mode:04o}"):
        load_bundle(path, trust=True)
    path.chmod(0o400)
    assert load_bundle(path, trust=True) == BUNDLE


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give files away")
def test_a_file_of_another_user_is_refused(path: Path) -> None:
    os.chown(path, 12345, 12345)
    with raises(BadParamError, f"bundle '{path}': owner", expected="of root", got="user 12345"):
        load_bundle(path, trust=True)


def test_a_link_to_a_file_is_taken_as_the_file(path: Path) -> None:
    """Volumes of Kubernetes have links alone."""
    link = path.with_name("link")
    link.symlink_to(path)
    assert load_bundle(str(link), trust=True) == BUNDLE
    path.chmod(0o666)
    with pytest.raises(BadParamError, match="0666"):
        load_bundle(link, trust=True)


def test_what_is_no_file_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fifo = path.with_name("fifo")
    os.mkfifo(fifo)
    for wrong in (fifo, path.parent, Path("/dev/zero")):
        with raises(BadParamError, f"bundle '{wrong}'", expected="a regular file"):
            load_bundle(wrong, trust=True)
    for missing in (path.with_name("none"), "a\0b"):
        with pytest.raises(BadParamError, match="expected a readable file"):
            load_bundle(missing, trust=True)
    monkeypatch.setattr(bundle_file, "MAX_BUNDLE_BYTES", len(CONTENT) - 1)
    with raises(SizeInsufficientError, f"bundle '{path}'", expected="at most", got=str(len(CONTENT))):
        load_bundle(path, trust=True)
