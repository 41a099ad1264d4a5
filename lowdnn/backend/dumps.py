"""Dumps of failing calls: a folder with a JSON document and the raw bytes of the tensors.

    DIR/dump-20260131T120000Z-71-1/dump.json
        {"lowdnn_dump": 1, "lowdnn": "0.2.0", "time": "...", "failure": "execute", "error": "...", ...,
         "plan": {"lowdnn_plan": 2, ...}, "tensors": [{"uid": 1, "moment": "before", "file": "1.before.raw", ...}, ...]}
    DIR/dump-20260131T120000Z-71-1/1.before.raw

The folder appears whole or not at all. DIR is the user's alone (mode 0700, checked), and bounded in bytes and dumps. A
reader takes nothing on trust: the document is read under limits, the plan is made again, and each file must have the
length and the digest that the document names. Nothing in a dump is run.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
import stat
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from lowdnn.documents import check_name, read_document, read_fields, shown, write_document
from lowdnn.heuristics.ranking import Candidate
from lowdnn.heuristics.stored_plans import Reading, restored
from lowdnn.runtime.cache_directory import EntryFolder, opened_private
from lowdnn.status import BadParamError

SCHEMA_VERSION = 1
#: The most dumps of a directory.
MAX_DUMPS = 64
#: The most bytes of one tensor that a reader takes.
MAX_TENSOR_BYTES = 64 << 30

_PREFIX, _DOCUMENT, _NEW = "dump-", "dump.json", ".new-"
_WRITE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_READ_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_MOMENTS = ("before", "after")
_FAILURES = ("execute", "check")


class NoRoomError(OSError):
    """The directory has as many dumps or bytes as it may have."""


@dataclass(frozen=True)
class DumpedTensor:
    """The memory of one tensor. moment: ``before`` the execute or ``after`` it.  address: where it lay on the device, 0
    for a by-value tensor.  file, size_bytes, sha256: its bytes; ``file`` is empty where there are none.  missing: the
    reason for that."""

    uid: int
    moment: str
    address: int
    size_bytes: int
    file: str = ""
    sha256: str = ""
    missing: str = ""


@dataclass(frozen=True)
class Dump:
    """A failing call. failure: ``execute`` where it raised, ``check`` where its results differ from the reference.

    error: the exception, or the differences.  device, device_name, policy: where it ran; policy of the emulated
    device, or "".  plan: the document of its plan (``stored_plans``).  command: the ``lowdnn run`` line.
    """

    lowdnn: str
    time: str
    failure: str
    error: str
    device: str
    device_name: str
    policy: str
    workspace_bytes: int
    command: str
    plan: Mapping[str, Any]
    tensors: tuple[DumpedTensor, ...]

    def candidate(self, reading: Reading) -> Candidate:
        """The plan, made again; raises what ``stored_plans.read_plan`` raises."""
        return restored(self.plan, reading, "dump.plan")


@dataclass(frozen=True)
class KeptBytes:
    """The memory of a tensor that is to be dumped. data: None where it could not be read; ``missing`` says why."""

    uid: int
    moment: str
    address: int
    size_bytes: int
    data: bytes | None = None
    missing: str = ""


def write_dump(directory: Path, name: str, dump: Dump, tensors: Sequence[KeptBytes], most_bytes: int) -> Path:
    """Writes ``dump`` with these tensors as the folder ``dump-<name>`` of ``directory``; returns its path.

    Raises OSError, NoRoomError where the directory would have more than ``most_bytes`` bytes or MAX_DUMPS dumps, and
    BadParamError for a graph that no document holds; then nothing is left.
    """
    files = {f"{one.uid}.{one.moment}.raw": one for one in tensors}
    described = tuple(_described(file, one) for file, one in files.items())
    text = write_document("lowdnn_dump", SCHEMA_VERSION, _plain(replace(dump, tensors=described))).encode()
    needed_bytes = len(text) + sum(len(one.data or b"") for one in tensors)
    with opened_private(directory, makes=True) as folder:
        _check_room(folder, needed_bytes, most_bytes)
        temporary = f"{_NEW}{secrets.token_hex(16)}"
        os.mkdir(temporary, 0o700, dir_fd=folder.descriptor)
        try:
            inner = os.open(temporary, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=folder.descriptor)
            try:
                for file, one in files.items():
                    if one.data is not None:
                        _write(inner, file, one.data)
                _write(inner, _DOCUMENT, text)
            finally:
                os.close(inner)
            os.rename(temporary, _PREFIX + name, src_dir_fd=folder.descriptor, dst_dir_fd=folder.descriptor)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True, dir_fd=folder.descriptor)
            raise
    return directory / (_PREFIX + name)


def read_dump(path: Path) -> Dump:
    """The document of a dump's folder. Raises BadParamError for what is none, or is damaged."""
    text = _read(path, _DOCUMENT, 16 << 20, "dump")
    content = read_document(text, "lowdnn_dump", SCHEMA_VERSION, _types(Dump), "dump")
    tensors = tuple(_tensor(one, f"dump.tensors[{place}]") for place, one in enumerate(content["tensors"]))
    if content["failure"] not in _FAILURES:
        raise BadParamError.at("dump.failure", expected=" or ".join(_FAILURES), got=shown(content["failure"]))
    check_name(content["device"], "dump.device")
    return Dump(**{**content, "tensors": tensors})


def read_bytes(path: Path, tensor: DumpedTensor) -> bytes:
    """The bytes of a tensor of the dump at ``path``; raises BadParamError for other ones than were written."""
    where = f"dump.tensors uid {tensor.uid} {tensor.moment}"
    data = _read(path, tensor.file, tensor.size_bytes, where)
    if len(data) != tensor.size_bytes or hashlib.sha256(data).hexdigest() != tensor.sha256:
        expected = f"{tensor.size_bytes} bytes with the digest of the document"
        got = f"{len(data)} bytes in {tensor.file}, which is damaged"
        raise BadParamError.at(where, expected=expected, got=got)
    return data


def _described(file: str, one: KeptBytes) -> DumpedTensor:
    if one.data is None:
        return DumpedTensor(one.uid, one.moment, one.address, one.size_bytes, missing=one.missing)
    digest = hashlib.sha256(one.data).hexdigest()
    return DumpedTensor(one.uid, one.moment, one.address, one.size_bytes, file, digest)


def _plain(dump: Dump) -> dict[str, Any]:
    return {**vars(dump), "tensors": [asdict(one) for one in dump.tensors]}


def _types(cls: type) -> dict[str, type]:
    """The JSON type of each field of a dataclass, by the text of its annotation."""
    types: Mapping[str, type] = {"int": int, "str": str, "Mapping[str, Any]": dict, "tuple[DumpedTensor, ...]": list}
    return {one.name: types[str(one.type)] for one in fields(cls)}


def _tensor(content: Any, where: str) -> DumpedTensor:
    found = DumpedTensor(
        **read_fields({"tensor": 1, **_object(content, where)}, "tensor", 1, _types(DumpedTensor), where)
    )
    own_file = f"{found.uid}.{found.moment}.raw"
    if found.moment not in _MOMENTS:
        raise BadParamError.at(f"{where}.moment", expected=" or ".join(_MOMENTS), got=shown(found.moment))
    if found.file not in ("", own_file):
        raise BadParamError.at(f"{where}.file", expected=f"{own_file} or none", got=shown(found.file))
    if not 0 <= found.size_bytes <= MAX_TENSOR_BYTES or found.address < 0:
        raise BadParamError.at(where, expected=f"0 to {MAX_TENSOR_BYTES} bytes at an address", got=shown(content))
    return found


def _object(content: Any, where: str) -> dict[str, Any]:
    if not isinstance(content, dict) or "tensor" in content:
        raise BadParamError.at(where, expected="an object with the fields of a tensor", got=shown(content))
    return content


def _check_room(folder: EntryFolder, needed_bytes: int, most_bytes: int) -> None:
    names = [name for name in os.listdir(folder.descriptor) if name.startswith((_PREFIX, _NEW))]
    taken_bytes = sum(_size(folder.path / name) for name in names)
    if len(names) >= MAX_DUMPS:
        raise NoRoomError(f"{folder.path} has {len(names)} dumps, the most that are kept; remove some")
    if taken_bytes + needed_bytes > most_bytes:
        over = f"{needed_bytes} more are over the limit of {most_bytes} (LOWDNN_DUMP_SIZE)"
        raise NoRoomError(f"{folder.path} has dumps of {taken_bytes} bytes, and {over}")


def _size(path: Path) -> int:
    with suppress(OSError):
        return sum(entry.stat(follow_symlinks=False).st_size for entry in os.scandir(path))
    return 0


def _write(folder: int, name: str, data: bytes) -> None:
    with os.fdopen(os.open(name, _WRITE_FLAGS, 0o600, dir_fd=folder), "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _read(path: Path, name: str, most_bytes: int, where: str) -> bytes:
    """A regular file of the folder; one byte more than ``most_bytes`` at most."""
    rule = "the folder of a dump, as LOWDNN_DUMP makes it"
    try:
        with os.fdopen(os.open(path / name, _READ_FLAGS), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise BadParamError.at(where, expected=rule, got=f"{str(path / name)!r}, which is no regular file")
            return file.read(most_bytes + 1)
    except (OSError, ValueError) as error:
        raise BadParamError.at(where, expected=rule, got=f"{os.fspath(path)!r}: {error}") from None
