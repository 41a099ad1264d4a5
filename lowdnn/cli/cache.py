"""``lowdnn cache``: the kernels that are kept on disk, and bundles of plans and kernels that are shipped."""

from __future__ import annotations

import argparse
import json
import re
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any, TypeVar

from lowdnn.config import Config, bytes_from
from lowdnn.runtime.cache import DiskCache
from lowdnn.runtime.cache_upkeep import CachedEntry, Removed, cached_entries, clear, trim, verify
from lowdnn.status import BadParamError

T = TypeVar("T")

_KEY_DIGITS = 12
_FORM = "{:12}  {:12}  {:8}  {:>10}  {:>5}  {}"
_HEADINGS = ("entry", "kind", "target", "bytes", "used", "kernel")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_AGE = re.compile(r"(\d{1,9})([smhdw])")


def cache(arguments: argparse.Namespace) -> int:
    """Runs one of the actions; 1 where ``verify`` leaves damage, otherwise 0."""
    return _ACTIONS[arguments.action](arguments)


def _list(arguments: argparse.Namespace) -> int:
    entries = cached_entries(_kept().directory)
    if arguments.json:
        _print_json({"entries": [asdict(entry) for entry in entries]})
        return 0
    now_s = time.time()
    rows = [_row(entry, now_s) for entry in entries]
    for row in [_HEADINGS, *rows]:
        print(_FORM.format(*row))
    return 0


def _size(arguments: argparse.Namespace) -> int:
    facts = _kept().facts()
    if facts.refusal:
        raise BadParamError.at("cache.directory", expected="a usable one", got=f"{facts.directory}: {facts.refusal}")
    if arguments.json:
        _print_json(asdict(facts))
    else:
        print(f"{facts.directory}: {facts.files} files, {facts.size_bytes} bytes of at most {facts.limit_bytes}")
    return 0


def _trim(arguments: argparse.Namespace) -> int:
    if arguments.bytes is None and arguments.age is None:
        raise BadParamError.at("cache.trim", expected="--bytes, --age, or both", got="neither")
    most_bytes = None if arguments.bytes is None else _parsed("bytes", arguments.bytes, bytes_from, "2G, 500M, 1000")
    unused_s = None if arguments.age is None else _parsed("age", arguments.age, _seconds, "90m, 12h, 30d, 8w")
    return _tell(trim(_kept().directory, most_bytes, unused_s), arguments)


def _clear(arguments: argparse.Namespace) -> int:
    return _tell(clear(_kept().directory), arguments)


def _verify(arguments: argparse.Namespace) -> int:
    verdict = verify(_kept().directory, repairs=arguments.repair)
    if arguments.json:
        _print_json(asdict(verdict))
    else:
        for damage in verdict.damaged:
            print(f"{'removed' if damage.is_removed else 'damaged'}  {damage.name}: {damage.problem}")
        print(f"{verdict.sound} sound entries, {len(verdict.damaged)} damaged files")
    return 0 if all(damage.is_removed for damage in verdict.damaged) else 1


def _export(arguments: argparse.Namespace) -> int:
    from lowdnn.cli.bundles import export_bundle

    config = Config.from_environment()
    return export_bundle(arguments, _kept() if config.disk_cache and config.cache_dir is not None else None)


def _import(arguments: argparse.Namespace) -> int:
    from lowdnn.cli.bundles import import_bundle_file

    return import_bundle_file(arguments, _kept())


def _tell(removed: Removed, arguments: argparse.Namespace) -> int:
    if arguments.json:
        _print_json(asdict(removed))
    else:
        print(f"removed {removed.files} files, {removed.size_bytes} bytes")
    return 0


def _kept() -> DiskCache:
    """The disk cache that this user's programs use."""
    config = Config.from_environment()
    if not config.disk_cache or config.cache_dir is None:
        got = "none: LOWDNN_DISK_CACHE is off" if config.cache_dir else "none: there is no home directory"
        raise BadParamError.at("cache.directory", expected="one", got=got, hint="set LOWDNN_CACHE_DIR")
    return DiskCache(config.cache_dir, config.cache_limit_bytes)


def _row(entry: CachedEntry, now_s: float) -> tuple[str, ...]:
    key = entry.key[:_KEY_DIGITS]
    return key, entry.kind, entry.target, str(entry.size_bytes), _age(now_s - entry.used_s), entry.kernel


def _age(seconds: float) -> str:
    """An age as text, in the largest unit that gives at least 2."""
    count, unit = max(seconds, 0.0), "s"
    for name, unit_s in _SECONDS.items():
        if seconds >= 2 * unit_s:
            count, unit = seconds / unit_s, name
    return f"{count:.0f}{unit}"


def _seconds(text: str) -> float | None:
    found = _AGE.fullmatch(text)
    return int(found[1]) * _SECONDS[found[2]] if found else None


def _parsed(option: str, text: str, parse: Callable[[str], T | None], examples: str) -> T:
    value = parse(text)
    if value is None:
        raise BadParamError.at(f"cache.{option}", expected=f"a number with a unit, such as {examples}", got=repr(text))
    return value


def _print_json(content: dict[str, Any]) -> None:
    print(json.dumps(content, indent=1))


_ACTIONS: dict[str, Callable[[argparse.Namespace], int]] = {
    "list": _list,
    "size": _size,
    "trim": _trim,
    "clear": _clear,
    "verify": _verify,
    "export": _export,
    "import": _import,
}
