"""Files of bundles: whose they may be, and how they are written."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lowdnn.documents import shown
from lowdnn.runtime.bundle import Bundle, bundle_bytes, bundle_from
from lowdnn.runtime.cache_files import write
from lowdnn.runtime.shared_files import check_place, place_of
from lowdnn.status import AttributeTypeError, BadParamError, SizeInsufficientError

#: The most bytes of a bundle: it is read into memory.
MAX_BUNDLE_BYTES = 1 << 30
_READ_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


def load_bundle(path: str | os.PathLike[str], *, trust: bool = False) -> Bundle:
    """The kernels and choices of plans in a file that ``lowdnn cache export`` wrote, for ``create_handle(bundle=)``.

    trust: has to be True. A bundle holds machine code, which runs on the device with all rights of this process and is
    checked for damage alone: load only what you have made, or had from somebody whom you would let run a program here.
    The file has to be the user's or root's, and no one else may write it. All of it is checked before this returns.

    Raises BadParamError for a file that is damaged or that others may write, SerializationVersionMismatchError for one
    of another version, SizeInsufficientError for one of more than MAX_BUNDLE_BYTES.
    """
    if not isinstance(path, (str, bytes, os.PathLike)):
        raise AttributeTypeError.at("load_bundle.path", expected="a path", got=shown(path))
    where = f"bundle {shown(os.fspath(path))}"
    if trust is not True:
        raise BadParamError.at(
            f"{where}: trust",
            expected="True, from a caller who trusts its maker, since its machine code runs as it is",
            got=shown(trust),
            hint="say trust=True, or lowdnn cache import --trust",
        )
    return bundle_from(_content(path, where), where)


def write_bundle(path: str | os.PathLike[str], bundle: Bundle) -> int:
    """Writes a file of the bundle, which replaces another regular file all at once; returns its bytes.

    Only the user may write the file. Raises BadParamError where it cannot be written.
    """
    content = bundle_bytes(bundle)
    with _named(path), place_of(Path(path)) as folder:
        write(folder, Path(path).name, content, mode=0o644)
    return len(content)


def check_bundle_place(path: str | os.PathLike[str]) -> None:
    """Raises BadParamError where ``write_bundle`` would; leaves nothing behind."""
    with _named(path):
        check_place(Path(path))


@contextmanager
def _named(path: str | os.PathLike[str]) -> Iterator[None]:
    """Raises BadParamError, which names the bundle, where the block raises OSError, or ValueError for no path."""
    try:
        yield
    except (OSError, ValueError) as error:
        where = f"bundle {shown(os.fspath(path))}"
        raise BadParamError.at(where, expected="a file that can be written", got=error) from None


def _content(path: str | os.PathLike[str], where: str) -> bytes:
    try:
        # Opening a device may do something, so that the file is looked at before and afterwards.
        _check(os.stat(path), where)
        with open(path, "rb", opener=lambda name, _: os.open(name, _READ_FLAGS)) as file:
            status = os.fstat(file.fileno())
            _check(status, where)
            return file.read(status.st_size)
    except BadParamError:
        raise
    except (OSError, ValueError) as error:  # ValueError: the name is no path of a file
        raise BadParamError.at(where, expected="a readable file", got=error) from None


def _check(status: os.stat_result, where: str) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise BadParamError.at(where, expected="a regular file", got=stat.filemode(status.st_mode))
    if status.st_uid not in (os.getuid(), 0):
        expected = f"a file of user {os.getuid()} or of root"
        raise BadParamError.at(f"{where}: owner", expected=expected, got=f"user {status.st_uid}")
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        expected = "a file that its owner alone may write"
        got = f"{stat.S_IMODE(status.st_mode):04o}"
        raise BadParamError.at(f"{where}: mode", expected=expected, got=got, hint="chmod go-w")
    if status.st_size > MAX_BUNDLE_BYTES:
        raise SizeInsufficientError.at(where, expected=f"at most {MAX_BUNDLE_BYTES} bytes", got=status.st_size)
