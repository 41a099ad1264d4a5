"""Options that do not go together, or that the device at hand would pass over, are refused."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager

from lowdnn.backend.handle import Handle
from lowdnn.config import CompilePolicy
from lowdnn.documents import shown
from lowdnn.status import BadParamError

#: Adds the options of a command to its parser.
AddArguments = Callable[[argparse.ArgumentParser], None]


class Options:
    """The options of one command line of ``command`` that differ from their defaults; none of them may be empty."""

    def __init__(self, command: str, arguments: argparse.Namespace, add_arguments: AddArguments) -> None:
        parser = argparse.ArgumentParser(add_help=False)
        add_arguments(parser)
        self._command = command
        values = vars(arguments).items()
        self._given = {name: value for name, value in values if value not in ([], parser.get_default(name))}
        for name, value in self._given.items():
            if value == "":
                raise BadParamError.at(f"{command}.{name}", expected="a value", got="''")

    def refuse(self, names: Iterable[str], rule: str) -> None:
        """Raises BadParamError, by ``rule``, for the first of ``names`` that is given."""
        for name in names:
            if name in self._given:
                raise BadParamError.at(f"{self._command}.{name}", expected=rule, got=shown(self._given[name]))

    def refuse_without(self, needed: str, names: Iterable[str]) -> None:
        """Raises BadParamError for the first of ``names`` that is given while ``needed`` is not."""
        if needed not in self._given:
            self.refuse(names, f"none without --{needed.replace('_', '-')}")

    def refuse_beside(self, other: str, names: Iterable[str]) -> None:
        """Raises BadParamError for the first of ``names`` that is given while ``other`` is, too."""
        if other in self._given:
            self.refuse(names, f"none beside --{other.replace('_', '-')}")


def check_ranges(command: str, arguments: argparse.Namespace, ranges: Mapping[str, tuple[int, int]]) -> None:
    """Raises BadParamError for an option that is given and not within its (least, most)."""
    for option, (least, most) in ranges.items():
        value = getattr(arguments, option)
        if value is not None and not least <= value <= most:
            raise BadParamError.at(f"{command}.{option}", expected=f"{least} to {most}", got=value)


@contextmanager
def opened(
    arguments: argparse.Namespace, options: Options, compile_policy: CompilePolicy | None = None, ordinal: int = 0
) -> Iterator[Handle]:
    """A handle on the device of ``--device``, ``--arch`` and ``--policy``, the last two of which no GPU takes.

    ordinal: the device's number.
    """
    rule, of_emulated = "none for a GPU: it is one of the emulated device", ("arch", "policy")
    if arguments.device == "cuda":
        options.refuse(of_emulated, rule)
    policy = getattr(arguments, "policy", None)
    with Handle.open(
        arguments.device, ordinal=ordinal, arch=arguments.arch, policy=policy, compile_policy=compile_policy
    ) as handle:
        if handle.runtime.driver.kind != "emulated":
            options.refuse(of_emulated, rule)
        yield handle
