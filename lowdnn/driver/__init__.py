"""Drivers: the seam between lowdnn and a device. See ``base.Driver``."""

from __future__ import annotations

import warnings
from dataclasses import replace

from lowdnn.config import Config
from lowdnn.driver.base import Driver
from lowdnn.driver.fault_injection import with_faults
from lowdnn.status import AttributeTypeError, BadParamError, EmulatedDeviceWarning, LowdnnError


def open_driver(
    kind: str = "auto", *, arch: str = "sm_90a", policy: str = "lockstep", devices: int | None = None, faults: str = ""
) -> Driver:
    """An initialised driver of one kind.

    ``cuda``: the GPU's driver; raises SublibraryLoadingFailedError or DriverError where there is none.
    ``emulated``: the CPU, as a device of ``arch`` that runs as ``policy`` says: the order of blocks and warps, and when
    asynchronous copies land (``warp-serial(7),early``); ``timeout=5`` stops launches without progress after 5 s.
    ``devices``: how many emulated devices there are, as ``devices=2`` in a policy says; by default one.
    ``auto``: the GPU where there is one, otherwise the emulated device, with one EmulatedDeviceWarning that says why.
    ``faults``: calls that are to fail (``mem_alloc:3=OUT_OF_MEMORY``), as ``fault_injection`` has them; for tests.

    Raises AttributeTypeError and BadParamError for arguments that are none of these.
    """
    for name, given in (("policy", policy), ("faults", faults)):
        if not isinstance(given, str):
            raise AttributeTypeError.at(f"open_driver.{name}", expected="a string", got=repr(given))
    if kind == "cuda":
        return _open_cuda(faults)
    if kind == "emulated":
        return _open_emulated(arch, policy, devices, faults)
    if kind != "auto":
        raise BadParamError.at("open_driver.kind", expected="auto, cuda or emulated", got=repr(kind))
    try:
        driver = _open_cuda(faults)
        missing = "" if driver.device_count() else "the driver sees no device"
    except (LowdnnError, ImportError) as error:
        missing = str(error)
    if not missing:
        return driver
    warnings.warn(f"no GPU ({missing}); taking the emulated device, {arch}", EmulatedDeviceWarning, stacklevel=2)
    return _open_emulated(arch, policy, devices, faults)


def configured_driver(config: Config, kind: str | None = None, faults: str = "") -> Driver:
    """The driver that a configuration names, or one of another ``kind`` with its choices; ``faults`` as above."""
    return open_driver(
        config.device if kind is None else kind,
        arch=config.emulated_arch,
        policy=config.emulated_policy,
        faults=faults,
    )


def _open_cuda(faults: str) -> Driver:
    # Imported here because the bindings alone take 0.1 s to import.
    from lowdnn.driver.cuda import CudaDriver

    driver = with_faults(CudaDriver(), faults)
    driver.init()
    return driver


def _open_emulated(arch: str, policy: str, devices: int | None, faults: str) -> Driver:
    # Imported here so that a process with a GPU never pays for the emulator.
    from lowdnn.driver.emulated.driver import EmulatedDriver
    from lowdnn.driver.emulated.options import Options

    options = Options.parse(policy)
    options = options if devices is None else replace(options, devices=devices)
    emulated = EmulatedDriver(
        arch=arch,
        policy=options.policy,
        landing=options.landing,
        races=options.races,
        timeout_s=options.timeout_s,
        devices=options.devices,
    )
    driver = with_faults(emulated, faults)
    driver.init()
    return driver
