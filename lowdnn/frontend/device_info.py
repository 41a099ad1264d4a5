"""cudnn.DeviceInfo: the facts of one device, asked of the driver."""

from __future__ import annotations

from functools import cached_property

from lowdnn.config import Config
from lowdnn.driver import configured_driver
from lowdnn.driver.base import DeviceAttribute, Driver
from lowdnn.frontend.arguments import integer
from lowdnn.status import InvalidValueError


class DeviceInfo:
    """The facts of a device by its number; each is asked for once, and no context is made."""

    def __init__(self, ordinal: int, driver: Driver | None = None) -> None:
        """``driver``: by default the one that LOWDNN_DEVICE names. Raises InvalidValueError for no device's number."""
        self.ordinal = integer(ordinal, "DeviceInfo.ordinal")
        self._driver = _driver_of_environment() if driver is None else driver
        count = self._driver.device_count()
        if not 0 <= self.ordinal < count:
            raise InvalidValueError.at("DeviceInfo.ordinal", expected=f"0 to {count - 1}", got=ordinal)

    @cached_property
    def compute_capability(self) -> tuple[int, int]:
        attributes = (DeviceAttribute.COMPUTE_CAPABILITY_MAJOR, DeviceAttribute.COMPUTE_CAPABILITY_MINOR)
        major, minor = map(self._attribute, attributes)
        return major, minor

    @property
    def sm_version(self) -> int:
        """90 for compute capability 9.0."""
        major, minor = self.compute_capability
        return major * 10 + minor

    @cached_property
    def sm_count(self) -> int:
        return self._attribute(DeviceAttribute.MULTIPROCESSOR_COUNT)

    @cached_property
    def shared_memory_per_block_optin(self) -> int:
        """The most bytes of shared memory that a block may ask for."""
        return self._attribute(DeviceAttribute.MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)

    @property
    def oversized_shared_memory_per_block(self) -> int:
        """0: no architecture that lowdnn knows gives a block more bytes than ``shared_memory_per_block_optin``."""
        return 0

    @cached_property
    def l2_cache_bytes(self) -> int:
        return self._attribute(DeviceAttribute.L2_CACHE_BYTES)

    @cached_property
    def device_name(self) -> str:
        return self._driver.device_name(self.ordinal)

    def __repr__(self) -> str:
        return f"DeviceInfo({self.ordinal}: {self.device_name})"

    def _attribute(self, attribute: DeviceAttribute) -> int:
        return self._driver.device_attribute(self.ordinal, attribute)


def _driver_of_environment() -> Driver:
    return configured_driver(Config.from_environment())
