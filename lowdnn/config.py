"""Configuration: the only reader of environment variables.

| variable               | values                           | default            | meaning                             |
| ---------------------- | -------------------------------- | ------------------ | ----------------------------------- |
| LOWDNN_DEVICE          | auto, cuda, emulated             | auto               | driver of a handle that names none  |
| LOWDNN_EMULATED_ARCH   | sm_80, sm_90a, sm_120, ...       | sm_90a             | architecture of the emulated device |
| LOWDNN_EMULATED_POLICY | lockstep, fuzz(SEED),early, ...  | lockstep           | its scheduling policy, and how many |
| LOWDNN_CACHE_DIR       | an absolute path                 | XDG cache + lowdnn | directory of compiled kernels       |
| LOWDNN_DISK_CACHE      | 1/true/on/yes, 0/false/off/no    | on                 | whether they are kept on disk       |
| LOWDNN_CACHE_SIZE      | bytes, or with K, M, G: 500M     | 1G                 | the most that they take up there    |
| LOWDNN_TUNING_PATH     | absolute paths with : between    | see below          | directories of tuning records       |
| LOWDNN_TUNING_SECONDS  | seconds: 5, 0.5                  | none               | of tuning a new graph in mode B     |
| LOWDNN_COMPILE         | wait, avoid, background          | wait               | see ``CompilePolicy``               |
| LOWDNN_LOG_LEVEL       | debug, info, warning, error, off | off                | events that are written             |
|                        | then AREA=LEVEL: info,launch=off |                    | of single areas (``AREAS``)         |
| LOWDNN_LOG_FILE        | a path (%p: process id), stdout  | stderr             | where events are written            |
| LOWDNN_LOG_FORMAT      | text, json                       | text               | the form of an event's line         |
| LOWDNN_WATCHDOG        | seconds: 5, 0.5                  | none               | executes that take longer are named |
| LOWDNN_DUMP            | a path                           | none               | directory of failing calls          |
| LOWDNN_DUMP_SIZE       | bytes, or with K, M, G: 500M     | 1G                 | the most that they take up there    |
| LOWDNN_DUMP_INPUTS     | before, after                    | after              | see ``DumpInputs``                  |
| LOWDNN_DEBUG           | as LOWDNN_DISK_CACHE             | off                | costly checks (thread misuse)       |
| LOWDNN_NVTX            | as LOWDNN_DISK_CACHE             | off                | an NVTX range for each execute      |
| LOWDNN_RECORD_CASES    | a path                           | none               | file of the graphs that are run     |
| LOWDNN_TELEMETRY       | on, off, sample=0.1,json=a, ...  | off                | see ``telemetry.starting``          |

By default LOWDNN_TUNING_PATH has the user's directory, XDG data + ``lowdnn/tuning``, and behind it that of all users of
a machine: ``/usr/local/share/lowdnn/tuning``. Records are written to the first.

Where LOWDNN_LOG_LEVEL or LOWDNN_LOG_FILE is not set, cuDNN's and cudnn-frontend's variables stand in for it, in pairs
as there: CUDNN_LOGLEVEL_DBG (0 to 3: off, error, warning, info) or the older CUDNN_LOGERR_DBG, CUDNN_LOGWARN_DBG and
CUDNN_LOGINFO_DBG (1: on) with CUDNN_LOGDEST_DBG, and CUDNN_FRONTEND_LOG_INFO (1 or 10: info) with
CUDNN_FRONTEND_LOG_FILE.

A value that is not understood gives a ``ConfigWarning`` and the default. Nothing is read when Python ignores the
environment (``python -E``, ``-I``). Variables are read when a ``Config`` is made, never later. Lists of paths for the
loader and for Python are read and changed here, too.
"""

from __future__ import annotations

import os
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Generic, TypeVar

from lowdnn.status import LowdnnWarning

T = TypeVar("T")
D = TypeVar("D")

#: The form of an architecture's name; the emulated device checks which ones exist.
_ARCH = r"sm_\d{2,4}a?"
#: The form of a policy; the emulated device, which reads it, says what each word means.
_POLICY = (
    r"(lockstep|cta-reverse|(warp-serial|fuzz)\(\d{1,9}\))"
    r"(, ?(late|early|races|timeout=\d{1,9}(\.\d{1,9})?|devices=\d{1,2}))*"
)


#: The form of the options of telemetry, which ``telemetry.starting`` reads and gives a meaning.
_TELEMETRY = r"[a-z]+(=[^,]+)?(,[a-z]+(=[^,]+)?)*"

#: Tuning records for all users of a machine.
_SITE_TUNING_DIR = Path("/usr/local/share/lowdnn/tuning")


#: The parts of the library that events come from: each has the logger ``lowdnn.<area>``.
AREAS = (
    "backend",
    "cache",
    "compile",
    "context",
    "driver",
    "dump",
    "events",
    "execute",
    "frontend",
    "heuristics",
    "launch",
    "module",
    "runtime",
    "telemetry",
    "tuning",
    "watchdog",
    "workspace",
)
#: Levels of events, the most talkative first.
LOG_LEVELS = ("debug", "info", "warning", "error", "off")
LOG_FORMATS = ("text", "json")


class ConfigWarning(LowdnnWarning):
    """An environment variable has a value that is not understood; its default is taken."""


class CompilePolicy(StrEnum):
    """The treatment of a plan whose kernels are not at hand: neither loaded nor on disk.

    WAIT        its kernels are compiled, and the call waits
    AVOID       the best plan whose kernels are at hand runs in its place; the call waits where there is none
    BACKGROUND  as AVOID; its kernels are compiled meanwhile, and a later execute switches to it
    """

    WAIT = "wait"
    AVOID = "avoid"
    BACKGROUND = "background"


class DumpInputs(StrEnum):
    """The time at which the tensors of a failing call are read: AFTER the failure, or BEFORE each execute, which costs
    a copy of all of them and a wait at every execute."""

    AFTER = "after"
    BEFORE = "before"


def default_cache_dir(environment: Mapping[str, str]) -> Path | None:
    """``$XDG_CACHE_HOME/lowdnn``, else ``$HOME/.cache/lowdnn``, else None (no home: nothing is kept on disk)."""
    base = _user_dir(environment, "XDG_CACHE_HOME", ".cache")
    return None if base is None else base / "lowdnn"


def default_tuning_path(environment: Mapping[str, str]) -> tuple[Path, ...]:
    """``$XDG_DATA_HOME/lowdnn/tuning``, else ``$HOME/.local/share/lowdnn/tuning`` where there is a home; a site's."""
    base = _user_dir(environment, "XDG_DATA_HOME", ".local/share")
    return (_SITE_TUNING_DIR,) if base is None else (base / "lowdnn" / "tuning", _SITE_TUNING_DIR)


@dataclass(frozen=True)
class Config:
    """See the module's table. ``cache_dir`` is None where no directory is known.

    No variable sets ``compile_threads``, how many threads compile ahead (0 for none, None for what suits the device),
    and ``compile_gradients``: whether a convolution's plan begins to compile its gradients, too.
    """

    device: str = "auto"
    emulated_arch: str = "sm_90a"
    emulated_policy: str = "lockstep"
    cache_dir: Path | None = field(default_factory=lambda: default_cache_dir(_environment()))
    disk_cache: bool = True
    log_level: str = "off"
    log_file: str = ""
    debug: bool = False
    nvtx: bool = False
    cache_limit_bytes: int = 1 << 30
    tuning_path: tuple[Path, ...] = field(default_factory=lambda: default_tuning_path(_environment()))
    tuning_s: float | None = None
    record_cases: Path | None = None
    telemetry: str = ""
    compile_policy: CompilePolicy = CompilePolicy.WAIT
    compile_threads: int | None = None
    compile_gradients: bool = False
    log_format: str = "text"
    watchdog_s: float | None = None
    dump_dir: Path | None = None
    dump_limit_bytes: int = 1 << 30
    dump_inputs: DumpInputs = DumpInputs.AFTER

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Config:
        """The configuration that ``environment`` (the process's own by default) asks for."""
        source = _environment() if environment is None else environment
        log_level, log_file = _log_settings(source)
        return cls(
            device=_read(source, "LOWDNN_DEVICE", "auto", _one_of("auto", "cuda", "emulated")),
            emulated_arch=_read(source, "LOWDNN_EMULATED_ARCH", "sm_90a", _ARCH_NAME),
            emulated_policy=_read(source, "LOWDNN_EMULATED_POLICY", "lockstep", _POLICY_TEXT),
            cache_dir=_read(source, "LOWDNN_CACHE_DIR", default_cache_dir(source), _ABSOLUTE_PATH),
            disk_cache=_read(source, "LOWDNN_DISK_CACHE", True, _SWITCH),
            compile_policy=_read(source, "LOWDNN_COMPILE", CompilePolicy.WAIT, _COMPILE_POLICY),
            log_level=log_level,
            log_file=log_file,
            watchdog_s=_read(source, "LOWDNN_WATCHDOG", None, _SECONDS),
            dump_dir=_read(source, "LOWDNN_DUMP", None, _PATH),
            dump_limit_bytes=_read(source, "LOWDNN_DUMP_SIZE", 1 << 30, _BYTES),
            dump_inputs=_read(source, "LOWDNN_DUMP_INPUTS", DumpInputs.AFTER, _DUMP_INPUTS),
            log_format=_read(source, "LOWDNN_LOG_FORMAT", "text", _one_of(*LOG_FORMATS)),
            debug=_read(source, "LOWDNN_DEBUG", False, _SWITCH),
            nvtx=_read(source, "LOWDNN_NVTX", False, _SWITCH),
            cache_limit_bytes=_read(source, "LOWDNN_CACHE_SIZE", 1 << 30, _BYTES),
            tuning_s=_read(source, "LOWDNN_TUNING_SECONDS", None, _SECONDS),
            record_cases=_read(source, "LOWDNN_RECORD_CASES", None, _PATH),
            telemetry=_read(source, "LOWDNN_TELEMETRY", "", _TELEMETRY_TEXT),
            tuning_path=_read(source, "LOWDNN_TUNING_PATH", default_tuning_path(source), _ABSOLUTE_PATHS),
        )


def with_first(first: Mapping[str, str], environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """``environment`` (the process's own by default) whose lists of paths begin with the entries of ``first``.

    ``first`` has one entry for each variable; what the lists had comes behind it.
    """
    result = dict(os.environ if environment is None else environment)
    for name, entry in first.items():
        others = [other for other in result.get(name, "").split(os.pathsep) if other not in ("", entry)]
        result[name] = os.pathsep.join([entry, *others])
    return result


def with_variables(more: Mapping[str, str]) -> dict[str, str]:
    """The environment of this process with the variables ``more``, for a child process."""
    return dict(os.environ) | dict(more)


def put_first(first: Mapping[str, str]) -> None:
    """Makes ``with_first`` the environment of this process and of its children."""
    os.environ.update(with_first(first))


def variables(names: Iterable[str], environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """The values of ``names`` in ``environment`` (the process's own by default), stripped, without empty ones.

    For the variables in which launchers tell each process its rank, which ``distributed.place`` understands.
    """
    source = _environment() if environment is None else environment
    found = {name: source.get(name, "").strip() for name in names}
    return {name: text for name, text in found.items() if text}


def unknown_variables(environment: Mapping[str, str] | None = None) -> list[str]:
    """The names in ``environment`` (the process's own by default) that begin as lowdnn's and are none of them."""
    source, asked = _environment() if environment is None else environment, _Asked()
    Config.from_environment(asked)
    return sorted(name for name in source if name.partition("_")[0] == "LOWDNN" and name not in asked.names)


def log_levels(text: str) -> dict[str, str] | None:
    """The level of each area that a value of LOWDNN_LOG_LEVEL names, and under ``""`` that of all others.

    None for another text.
    """
    levels = {"": "off"}
    for number, part in enumerate(text.lower().split(",")):
        area, has_area, level = (word.strip() for word in part.rpartition("="))
        is_placed = area in AREAS if has_area else number == 0
        if not is_placed or level not in LOG_LEVELS:
            return None
        levels[area] = level
    return levels


def bytes_from(text: str) -> int | None:
    """The bytes that a text such as ``500M`` or ``1000`` says; None for another text."""
    found = re.fullmatch(r"(\d{1,15})([KMG]?)", text.upper())
    return int(found[1]) << {"": 0, "K": 10, "M": 20, "G": 30}[found[2]] if found else None


def _user_dir(environment: Mapping[str, str], variable: str, below_home: str) -> Path | None:
    """A user's directory: the one that ``variable`` names, else the one below the home; None where neither is known."""
    named = Path(environment.get(variable, ""))
    home = Path(environment.get("HOME", ""))
    if named.is_absolute():
        return named
    return home / below_home if home.is_absolute() else None


def _environment() -> Mapping[str, str]:
    return {} if sys.flags.ignore_environment else os.environ


class _Asked(dict[str, str]):
    """An environment without variables, which keeps the names that it was asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def get(self, name: str, default: D | None = None) -> str | D | None:  # type: ignore[override]
        self.names.add(name)
        return default


@dataclass(frozen=True)
class _Form(Generic[T]):
    """The values of a variable. rule: in words.  read: the value of a text; None for another text."""

    rule: str
    read: Callable[[str], T | None]


def _read(environment: Mapping[str, str], name: str, default: D, form: _Form[T]) -> T | D:
    text = environment.get(name, "").strip()
    if not text:
        return default
    value = form.read(text)
    if value is None:
        taken = os.pathsep.join(map(str, default)) if isinstance(default, tuple) else default
        message = f"{name}={text!r} is not understood: expected {form.rule}; taking {taken}"
        warnings.warn(message, ConfigWarning, stacklevel=3)
        return default
    return value


def _log_settings(source: Mapping[str, str]) -> tuple[str, str]:
    """The level and the file of events: lowdnn's own variables, or else those of cuDNN and cudnn-frontend."""
    level, file = _cudnn_log_settings(source)
    if source.get("LOWDNN_LOG_LEVEL", "").strip():
        level = _read(source, "LOWDNN_LOG_LEVEL", "off", _LOG_LEVEL)
    return level, source.get("LOWDNN_LOG_FILE", "") or file


def _cudnn_log_settings(source: Mapping[str, str]) -> tuple[str, str]:
    """The level and the file that the variables of cuDNN, or else of cudnn-frontend, ask for: none without a file."""
    for file_variable, levels in _CUDNN_LOGS.items():
        file = source.get(file_variable, "").strip().replace("%i", "%p")
        for level_variable, form in levels.items() if file else ():
            level = _read(source, level_variable, "off", form)
            if level != "off":
                return level, file
    return "off", ""


def _one_of(*values: str) -> _Form[str]:
    return _Form(f"one of {', '.join(values)}", lambda text: text.lower() if text.lower() in values else None)


def _compile_policy(text: str) -> CompilePolicy | None:
    return CompilePolicy(text.lower()) if text.lower() in list(CompilePolicy) else None


def _boolean(text: str) -> bool | None:
    if text.lower() in ("1", "true", "on", "yes"):
        return True
    return False if text.lower() in ("0", "false", "off", "no") else None


def _seconds(text: str) -> float | None:
    return float(text) if re.fullmatch(r"\d{1,9}(\.\d{1,9})?", text) and float(text) > 0 else None


def _arch(text: str) -> str | None:
    return text.lower() if re.fullmatch(_ARCH, text.lower()) else None


def _telemetry(text: str) -> str | None:
    if _boolean(text) is not None:
        return "on" if _boolean(text) else ""
    return text if re.fullmatch(_TELEMETRY, text) else None


def _path(text: str) -> Path | None:
    try:
        return Path(text).absolute()
    except OSError:  # a relative one where the current directory has gone
        return None


def _absolute_paths(text: str) -> tuple[Path, ...] | None:
    paths = tuple(map(Path, text.split(os.pathsep)))
    return paths if all(path.is_absolute() for path in paths) else None


def _cudnn_level(text: str) -> str | None:
    """cuDNN takes the nearest of its levels for a number beyond them."""
    number = int(text) if re.fullmatch(r"-?\d{1,9}", text) else None
    return None if number is None else ("off", "error", "warning", "info")[min(max(number, 0), 3)]


_LOG_LEVEL = _Form(
    f"one of {', '.join(LOG_LEVELS)}, then AREA=LEVEL such as launch=debug, with commas between; areas are "
    + ", ".join(AREAS),
    lambda text: text.lower() if log_levels(text) else None,
)
#: The variables that set a level, by the one that names its file.
_CUDNN_LOGS: Mapping[str, Mapping[str, _Form[str]]] = {
    "CUDNN_LOGDEST_DBG": {
        "CUDNN_LOGLEVEL_DBG": _Form("0 (off), 1 (error), 2 (warning) or 3 (info)", _cudnn_level),
        "CUDNN_LOGINFO_DBG": _Form("0 or 1", {"0": "off", "1": "info"}.get),
        "CUDNN_LOGWARN_DBG": _Form("0 or 1", {"0": "off", "1": "warning"}.get),
        "CUDNN_LOGERR_DBG": _Form("0 or 1", {"0": "off", "1": "error"}.get),
    },
    "CUDNN_FRONTEND_LOG_FILE": {
        "CUDNN_FRONTEND_LOG_INFO": _Form("0, 1 or 10", {"0": "off", "1": "info", "10": "info"}.get),
    },
}
_SWITCH = _Form("on or off", _boolean)
_COMPILE_POLICY = _Form(f"one of {', '.join(CompilePolicy)}", _compile_policy)
_ARCH_NAME = _Form("an architecture such as sm_90a", _arch)
_POLICY_TEXT = _Form("a policy such as fuzz(7),early", lambda text: text if re.fullmatch(_POLICY, text) else None)
_TELEMETRY_TEXT = _Form("on, off, or options such as sample=0.1,prometheus=9400", _telemetry)
_DUMP_INPUTS = _Form("before or after", lambda text: DumpInputs(text) if text in list(DumpInputs) else None)
_PATH = _Form("a path", _path)
_ABSOLUTE_PATH = _Form("an absolute path", lambda text: Path(text) if Path(text).is_absolute() else None)
_ABSOLUTE_PATHS = _Form(f"absolute paths with {os.pathsep} between", _absolute_paths)
_BYTES = _Form("bytes, or with K, M or G such as 500M", bytes_from)
_SECONDS = _Form("seconds such as 2.5, more than 0", _seconds)
