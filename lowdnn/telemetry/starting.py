"""Telemetry by LOWDNN_TELEMETRY: ``on``, or options with commas between, each once.

sample=SHARE        the share of executes that are timed, 0 to 1; 0.01 by default
interval=SECONDS    between two exports; 15 by default
prometheus=PORT     an endpoint on that port of the machine itself; HOST:PORT for one that others reach
directory=PATH      writes this process's measures there, and has the endpoint sum all processes that do
text=PATH           a file for node_exporter's textfile collector; %p in it is the number of the process
json=PATH           a file of JSON lines; %p as before
nvml                the GPUs' own measures
opentelemetry       metrics and spans, to the providers that the program has set
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any

from lowdnn.config import ConfigWarning
from lowdnn.status import BadParamError, LowdnnError
from lowdnn.telemetry import enable

_WHERE = "LOWDNN_TELEMETRY"


def start(text: str) -> None:
    """Turns telemetry on as ``text`` says. Whatever stands against it gives a ConfigWarning: the program goes on."""
    try:
        enable(**options_of(text))
    except (LowdnnError, ImportError, OSError) as error:
        warnings.warn(f"{_WHERE}={text!r}: {error}; telemetry is off", ConfigWarning, stacklevel=4)


def options_of(text: str) -> dict[str, Any]:
    """The arguments of ``telemetry.enable`` that ``text`` stands for.

    Raises BadParamError for other options, ModuleNotFoundError where an extra is missing.
    """
    given: dict[str, str] = {}
    for word in [] if text == "on" else text.split(","):
        name, _, value = word.partition("=")
        if name not in _OPTIONS:
            raise BadParamError.at(_WHERE, expected=f"on, off, or {', '.join(_OPTIONS)}", got=repr(name))
        if name in given:
            raise BadParamError.at(f"{_WHERE}.{name}", expected="each option once", got="twice")
        if bool(value) == (name in _FLAGS):
            expected = "no value" if value else "a value"
            raise BadParamError.at(f"{_WHERE}.{name}", expected=expected, got=repr(value))
        given[name] = value
    options: dict[str, Any] = {"exporters": [], "feeds": []}
    for name in given:
        _OPTIONS[name](options, given)
    return options


def _sample(options: dict[str, Any], given: Mapping[str, str]) -> None:
    options["sample"] = _number("sample", given["sample"])


def _interval(options: dict[str, Any], given: Mapping[str, str]) -> None:
    options["interval_s"] = _number("interval", given["interval"])


def _prometheus(options: dict[str, Any], given: Mapping[str, str]) -> None:
    from lowdnn.telemetry.endpoint import Endpoint

    host, _, port = given["prometheus"].rpartition(":")
    number = _number("prometheus", port)
    place = Endpoint(int(number), host or "127.0.0.1", directory=given.get("directory"))
    options["exporters"].append(place)


def _directory(options: dict[str, Any], given: Mapping[str, str]) -> None:
    from lowdnn.telemetry.process_files import ProcessFiles

    options["exporters"].append(ProcessFiles(given["directory"]))


def _text(options: dict[str, Any], given: Mapping[str, str]) -> None:
    from lowdnn.telemetry.prometheus import TextFile

    options["exporters"].append(TextFile(given["text"]))


def _json(options: dict[str, Any], given: Mapping[str, str]) -> None:
    from lowdnn.telemetry.json_lines import JsonLines

    options["exporters"].append(JsonLines(given["json"]))


def _nvml(options: dict[str, Any], given: Mapping[str, str]) -> None:
    from lowdnn.telemetry.nvml import GpuFeed

    options["feeds"].append(GpuFeed())


def _opentelemetry(options: dict[str, Any], given: Mapping[str, str]) -> None:
    from lowdnn.telemetry.otel import OpenTelemetry

    exporter = OpenTelemetry()
    options["exporters"].append(exporter)
    options["spans"] = exporter.spans


def _number(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise BadParamError.at(f"{_WHERE}.{name}", expected="a number", got=repr(text)) from None


#: Adds the meaning of an option to the arguments, by name; gets all options that are given, too.
_OPTIONS: Mapping[str, Callable[[dict[str, Any], Mapping[str, str]], None]] = {
    "sample": _sample,
    "interval": _interval,
    "prometheus": _prometheus,
    "directory": _directory,
    "text": _text,
    "json": _json,
    "nvml": _nvml,
    "opentelemetry": _opentelemetry,
}
_FLAGS = ("nvml", "opentelemetry")
