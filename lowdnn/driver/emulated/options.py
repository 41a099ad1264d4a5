"""How an emulated device runs kernels: what a user may choose, with its checks."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from lowdnn.driver.emulated.running.policy import Policy
from lowdnn.status import BadParamError

#: A driver's most devices: those of the largest hosts.
MOST_DEVICES = 16
_LANDINGS = ("late", "early")
#: The words behind a policy: the option that each one sets, its form, and the value of what the form catches.
_WORDS: tuple[tuple[str, re.Pattern[str], Callable[[str], Any]], ...] = (
    ("landing", re.compile("(late|early)"), str),
    ("races", re.compile("(races)"), bool),
    ("timeout_s", re.compile(r"timeout=(\d+(?:\.\d+)?)"), float),
    ("devices", re.compile(r"devices=(\d+)"), int),
)


@dataclass(frozen=True)
class Options:
    """How launches run; raises BadParamError for a value that there is not.

    ``policy``: the order of warps and blocks, as ``Policy.parse`` takes it. ``checks``: whether reading bytes that
    nothing has written is a fault. ``landing``: asynchronous copies land at their wait (``late``) or at once
    (``early``); None: late, or as a fuzzing policy draws it. ``lane_budget``: threads that run as one batch, in whole
    blocks, at least one; it changes speed and memory only. ``timeout_s``: a launch that makes no
    progress for so long is a fault, and so is one that takes 15 times that, as ``TimeLimit`` has it.
    ``races``: whether data races are looked for; a launch takes a few times as long.
    ``devices``: how many devices of one kind the driver has.
    """

    policy: str = "lockstep"
    checks: bool = True
    landing: str | None = None
    lane_budget: int = 1 << 15
    timeout_s: float = 20.0
    races: bool = False
    devices: int = 1

    @staticmethod
    def parse(text: str) -> Options:
        """Options from ``POLICY[,late|early][,races][,timeout=SECONDS][,devices=N]``, such as ``fuzz(7),early``.

        Raises BadParamError.
        """
        policy, *words = (word.strip() for word in text.split(","))
        options: dict[str, Any] = {}
        for word in words:
            found = ((name, form.fullmatch(word), read) for name, form, read in _WORDS)
            changed = {name: read(match[1]) for name, match, read in found if match is not None}
            if not changed or changed.keys() & options.keys():
                raise BadParamError.at(
                    "EmulatedDriver.policy",
                    expected="POLICY with ,late or ,early, ,races, ,timeout=SECONDS and ,devices=N, each at most once",
                    got=repr(text),
                )
            options |= changed
        return Options(policy, **options)

    def __post_init__(self) -> None:
        Policy.parse(self.policy)
        if self.landing not in (None, *_LANDINGS):
            raise BadParamError.at("EmulatedDriver.landing", expected="late, early or None", got=repr(self.landing))
        if type(self.checks) is not bool:
            raise BadParamError.at("EmulatedDriver.checks", expected="True or False", got=repr(self.checks))
        if type(self.races) is not bool:
            raise BadParamError.at("EmulatedDriver.races", expected="True or False", got=repr(self.races))
        if type(self.lane_budget) is not int or self.lane_budget < 1:
            raise BadParamError.at(
                "EmulatedDriver.lane_budget", expected="a positive number of threads", got=repr(self.lane_budget)
            )
        if type(self.devices) is not int or not 1 <= self.devices <= MOST_DEVICES:
            raise BadParamError.at("EmulatedDriver.devices", expected=f"1 to {MOST_DEVICES}", got=repr(self.devices))
        if not self.timeout_s > 0:
            raise BadParamError.at(
                "EmulatedDriver.timeout_s", expected="a positive number of seconds", got=repr(self.timeout_s)
            )
