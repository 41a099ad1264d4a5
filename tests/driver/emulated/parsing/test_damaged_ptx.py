"""PTX that is damaged at random: it loads, or is refused as a driver refuses it, and the device goes on."""

from __future__ import annotations

import random
from contextlib import suppress
from pathlib import Path

import pytest

from lowdnn.driver.base import DriverImageError
from lowdnn.driver.emulated.driver import EmulatedDriver
from tests.support.data import fresh_seed

KERNELS = sorted((Path(__file__).parents[4] / "ptx" / "sm_80").glob("*.ptx"), key=lambda path: path.stat().st_size)[:40]
CHARACTERS = "%{}[];,.:@!+-0x9fru<>\"'\\$_ "
MODULE = ".version 8.0\n.target sm_80\n.address_size 64\n"


@pytest.fixture
def driver() -> EmulatedDriver:
    driver = EmulatedDriver()
    driver.init()
    driver.context_set_current(driver.primary_context_retain(0))
    return driver


def damage(rng: random.Random, lines: list[str]) -> None:
    place = rng.randrange(len(lines))
    line = lines[place]
    column = rng.randrange(len(line) + 1)
    match rng.randrange(6):
        case 0:
            del lines[place]
        case 1:
            lines.insert(place, rng.choice(lines))
        case 2:
            lines[place] = line[:column] + line[column + 1 :]
        case 3:
            lines[place] = line[:column] + rng.choice(CHARACTERS) + line[column:]
        case 4:
            words = line.split(" ")
            rng.shuffle(words)
            lines[place] = " ".join(words)
        case 5:
            lines[place] = line.replace(".u32", ".s64").replace(".b32", ".f16x2").replace("1", "9" * 20)


def test_damaged_ptx_loads_or_is_refused(driver: EmulatedDriver) -> None:
    seed = fresh_seed()
    print(f"seed = {seed}")  # noqa: T201
    rng = random.Random(seed)
    free_bytes = driver.mem_get_info()[0]
    for number in range(60):
        lines = rng.choice(KERNELS).read_text().split("\n")
        for _ in range(rng.choice([1, 1, 1, 3])):
            damage(rng, lines)
        with suppress(DriverImageError):
            driver.module_unload(driver.module_load_data("\n".join(lines).encode()))
        assert driver.mem_get_info()[0] == free_bytes, f"damage {number}: memory is lost"


@pytest.mark.parametrize(
    "body",
    [
        ".visible .entry k()\n{\n.reg .b32 %r<3>;\nfrobnicate.u32 %r1, %r2;\nret;\n}",
        ".visible .entry k()\n{\n.reg .b32 %r<3>;\nmov.u32 %r1;\nret;\n}",
        ".visible .entry k()\n{\n.reg .b32 %r<3>;\nmov.u32 %r1, .s32;\nret;\n}",
        ".visible .entry k(.param .u32 x)\n{\n.reg .b32 %r<3>;\nld.param.u32 %r1, [y];\nret;\n}",
        ".global .u64 a;\n.global .u64 b = nothing;\n.visible .entry k()\n{\nret;\n}",
        "nonsense",
    ],
)
def test_what_no_driver_takes_is_invalid_ptx_at_load(driver: EmulatedDriver, body: str) -> None:
    free_bytes = driver.mem_get_info()[0]
    with pytest.raises(DriverImageError, match=r"(?s)cuModuleLoadDataEx.*PTX line") as caught:
        driver.module_load_data((MODULE + body).encode())
    assert (caught.value.name, caught.value.result) == ("CUDA_ERROR_INVALID_PTX", 218)
    assert driver.mem_get_info()[0] == free_bytes
    driver.module_load_data((MODULE + ".visible .entry k()\n{\nret;\n}").encode())
