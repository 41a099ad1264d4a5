"""Every public name of cudnn-frontend's Python package, with its parameters and defaults, is in ``lowdnn.frontend``."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping
from enum import Enum
from pathlib import Path
from typing import Any

import pytest

import lowdnn.frontend as cudnn
from lowdnn.backend import Handle
from lowdnn.enums import KnobType
from lowdnn.frontend.knobs import ranged
from lowdnn.frontend.refused_methods import RefusedMethods
from lowdnn.frontend.refused_names import RefusedName
from lowdnn.status import NotSupportedError

VERSIONS = ("1_23", "1_32")

#: Defaults that mean the same: theirs, ours.
SAME = {
    ("None", "NOT_SET"),
    ("None", "NONE"),
    ("None", "-1"),
    ("''", "None"),
    ("NOT_SET", "None"),
    ("CROSS_CORRELATION", "None"),
    ("[]", "None"),
    ("[]", "()"),
}
_MADE_HERE = "the library makes it"
_OLDER_ORDER = "the order of 1.23"
#: Differences, with their reasons.
DIFFERENCES: Mapping[str, tuple[str, str]] = {
    "knob.__init__": ("no knob_type; max_value required; min_value required; stride required; order", _MADE_HERE),
    "Node.__init__": ("compute_data_type required", _MADE_HERE),
    "Node.infer_properties": ("missing", "pygraph.validate infers for all nodes"),
    "Tensor.__init__": ("uid=0, here -1; no uid_assigned; no dim_assigned; no stride_assigned; no owner", _MADE_HERE),
    "Tensor.set_data_type": ("no dtype", "the name of 1.23"),
    "pygraph.execute": ("no tensor_to_device_buffer", "the name of 1.32"),
    "pygraph.execute_plan_at_index": ("no tensor_to_device_buffer", "the name of 1.32"),
    "pygraph.tensor_like": ("order", "input is the first argument by its older name"),
    "pygraph.moe_grouped_matmul": ("compute_data_type=None, here FLOAT", "the default of 1.23"),
    "pygraph.moe_grouped_matmul_bwd": ("compute_data_type=None, here FLOAT", "the default of 1.23"),
    "pygraph.gen_index": ("order", _OLDER_ORDER),
    **{
        f"pygraph.{name}{end}": ("order", _OLDER_ORDER)
        for name in ("relu", "leaky_relu", "swish")
        for end in ("", "_backward")
    },
}


def lines(version: str) -> list[str]:
    """The table's lines, put together again."""
    text = (Path(__file__).parent / "inventory" / f"{version}.txt").read_text()
    text = re.sub(r"^#.*\n", "", text, flags=re.MULTILINE)
    return [line for line in re.sub(r"\n +", " ", text).splitlines() if line]


def names(version: str) -> list[str]:
    """The names without parameters."""
    return [name for line in lines(version) if "(" not in line and " = " not in line for name in line.split()]


def signatures(version: str) -> list[str]:
    return [line for line in lines(version) if "(" in line]


def enums(version: str) -> dict[str, dict[str, int]]:
    """Members and numbers by enum."""
    tables = [line.split(" = ") for line in lines(version) if " = " in line and "(" not in line]
    members = {name: words.split() for name, words in tables}
    return {name: dict(zip(words[::2], map(int, words[1::2]), strict=True)) for name, words in members.items()}


@pytest.fixture
def instances(handle: Handle) -> dict[str, object]:
    """An object of each class that has attributes."""
    own = object.__new__(cudnn.Handle)
    Handle.__init__(own, handle.runtime)
    graph = cudnn.pygraph(handle=handle)
    x = graph.tensor([4], name="x")
    graph.exp(x)
    return {
        "knob": ranged(KnobType.TILE_M, (64, 128)),
        "DeviceInfo": cudnn.DeviceInfo(0, handle.runtime.driver),
        "Handle": own,
        "handle": own,
        "Node": graph.nodes[0],
        "GraphContext": graph.context,
        "Tensor": x,
        "tensor": x,
        "pygraph": graph,
        "kernel_cache": cudnn.create_kernel_cache(),
        "device_properties": cudnn.create_device_properties(handle),
    }


@pytest.mark.parametrize("version", VERSIONS)
def test_every_name_is_there(version: str, instances: dict[str, object]) -> None:
    missing = []
    for path in names(version):
        owner, _, name = path.rpartition(".")
        if not hasattr(instances[owner] if owner else cudnn, name):
            missing.append(path)
    assert missing == []


@pytest.mark.parametrize("version", VERSIONS)
def test_every_parameter_is_there(version: str) -> None:
    """Parameters have the same order and defaults; those that lowdnn requires, cudnn-frontend requires."""
    found: dict[str, str] = {}
    for line in signatures(version):
        path = line.partition("(")[0]
        told = "; ".join(differences(line))
        if told or path in DIFFERENCES:
            found[path] = max(told, found.get(path, ""), key=len)
    expected = {path: told for path, (told, _) in DIFFERENCES.items()}
    assert {path: told for path, told in found.items() if told} == {
        path: expected.get(path, "") for path, told in found.items() if told
    }


def test_every_known_difference_is_one() -> None:
    found = {line.partition("(")[0] for version in VERSIONS for line in signatures(version) if list(differences(line))}
    assert found == set(DIFFERENCES)
    used = {pair for version in VERSIONS for line in signatures(version) for pair in defaults(line)}
    assert used >= SAME


def test_enums_have_every_member() -> None:
    """Numbers are those of 1.32; those of 1.23 lack a data type in their middle."""
    for name, members in enums("1_32").items():
        ours = {member.name: int(member) for member in getattr(cudnn, name)}
        assert members.items() <= ours.items(), name
    for name, members in enums("1_23").items():
        assert members.keys() <= {member.name for member in getattr(cudnn, name)}, name


def test_names_of_what_is_not_computed_say_so() -> None:
    refused = [name for name in dir(cudnn) if isinstance(getattr(cudnn, name), RefusedName)]
    every = {path.partition(".")[0].partition("(")[0] for version in VERSIONS for path in lines(version)}
    every |= {name for version in VERSIONS for name in names(version)}
    assert set(refused) <= every
    assert len(refused) > 150
    for name in refused:
        with pytest.raises(NotSupportedError, match=rf"cudnn\.{name}: expected what lowdnn computes, got .+"):
            getattr(cudnn, name)(1, x=2)
    with pytest.raises(NotSupportedError, match=r"cudnn\.NSA\.SelectionAttention: expected what lowdnn computes"):
        cudnn.NSA.SelectionAttention()
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = cudnn.nothing


@pytest.mark.parametrize("method", [name for name in vars(RefusedMethods) if not name.startswith("_")])
def test_methods_of_what_is_not_computed_say_so(method: str) -> None:
    graph = cudnn.pygraph(sm_version=90)
    with pytest.raises(
        NotSupportedError, match=rf"pygraph\.{method}: expected what an engine computes, got .*attention"
    ):
        getattr(graph, method)(graph.tensor([4]), name="x")


def differences(line: str) -> Iterator[str]:
    """Parts of cudnn-frontend's signature that lowdnn's does not have."""
    path, _, rest = line.partition("(")
    found = find(path)
    if found is None:
        yield "missing"
    if found is None or isinstance(found, RefusedName) or path.removeprefix("pygraph.") in vars(RefusedMethods):
        return
    ours = {name: item for name, item in inspect.signature(found).parameters.items() if name != "self"}
    theirs = parameters(rest)
    if any(re.fullmatch(r"arg\d*", name) for name in theirs):
        if len(theirs) > len(ours):
            yield f"{len(theirs)} parameters"
        return
    for name, default in theirs.items():
        if name != "*" and name not in ours:
            yield f"no {name}"
        elif default and ours[name].default is inspect.Parameter.empty:
            yield f"{name} required"
        elif default and not is_same(default, ours[name].default):
            yield f"{name}={default}, here {shown(ours[name].default)}"
    by_position = [*theirs, "*"][: [*theirs, "*"].index("*")]
    if [name for name in ours if name in by_position] != [name for name in by_position if name in ours]:
        yield "order"


def defaults(line: str) -> Iterator[tuple[str, str]]:
    """(theirs, ours) of each parameter that both have."""
    path, _, rest = line.partition("(")
    found = find(path)
    if found is None or isinstance(found, RefusedName) or path.removeprefix("pygraph.") in vars(RefusedMethods):
        return
    ours = inspect.signature(found).parameters
    for name, default in parameters(rest).items():
        if name in ours and default:
            yield default, shown(ours[name].default)


def find(path: str) -> Any:
    """The function or method of this path, None where there is none."""
    found: Any = cudnn
    for name in path.split("."):
        found = getattr(found, name, None)
    return found


def parameters(text: str) -> dict[str, str]:
    """Names and defaults, empty where there is none."""
    return dict(re.findall(r"(\*|\w+)(?:=(\[[^]]*\]|'[^']*'|[^,)]+))?", text.removesuffix(")")))


def is_same(theirs: str, ours: Any) -> bool:
    if theirs == shown(ours) or (theirs, shown(ours)) in SAME:
        return True
    try:
        return float(theirs) == float(ours)
    except (TypeError, ValueError):
        return False


def shown(default: Any) -> str:
    return default.name if isinstance(default, Enum) else repr(default)
