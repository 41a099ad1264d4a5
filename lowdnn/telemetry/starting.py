"""Telemetry by LOWDNN_TELEMETRY: ``on``, or options with commas between, each once.

sample=SHARE     the share of executes that are timed, 0 to 1; 0.01 by default
interval=SECONDS between two exports; 15 by default
"""

from __future__ import annotations

import warnings
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
    """The arguments of ``telemetry.enable`` that ``text`` stands for. Raises BadParamError for other options."""
    given: dict[str, str] = {}
    for word in [] if text == "on" else text.split(","):
        name, _, value = word.partition("=")
        if name in given:
            raise BadParamError.at(f"{_WHERE}.{name}", expected="each option once", got="twice")
        given[name] = value
    options: dict[str, Any] = {}
    for name, value in given.items():
        if name == "sample":
            options["sample"] = _number(name, value)
        elif name == "interval":
            options["interval_s"] = _number(name, value)
        else:
            raise BadParamError.at(_WHERE, expected="options of the guide's topic telemetry", got=repr(name))
    return options


def _number(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise BadParamError.at(f"{_WHERE}.{name}", expected="a number", got=repr(text)) from None
