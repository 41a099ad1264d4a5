"""Calls from generated code to the race detector; they do nothing if the launch has none."""

from __future__ import annotations

from lowdnn.driver.emulated.memory.arena import Array
from lowdnn.driver.emulated.running.batch import Group


def fence(group: Group, scope: int) -> None:
    """A fence of ``scope``, or the fence that ``.release`` and ``.acquire`` imply."""
    if group.batch.races is not None:
        group.batch.races.fences.fence(group, scope)


def previous_launch_ended(group: Group) -> None:
    """``griddepcontrol.wait``."""
    if group.batch.races is not None:
        group.batch.races.order.previous_launch_ended(group.lanes)


def fence_proxy(group: Group) -> None:
    """``fence.proxy.async``."""
    if group.batch.races is not None:
        group.batch.races.work.fence_proxy(group)


def release_maps(group: Group) -> None:
    """``fence.proxy.tensormap::generic.release``."""
    if group.batch.races is not None:
        group.batch.races.maps.release(group)


def fence_mbarrier_init(group: Group) -> None:
    """``fence.mbarrier_init``: the barriers are ready for everybody who is told, the async proxy too."""
    if group.batch.races is not None:
        group.batch.races.work.fence_proxy(group)
        group.batch.races.fences.release_only(group)


def mbarrier_written(group: Group, place: Array) -> None:
    """``mbarrier.init`` and ``inval`` at byte numbers ``place`` of shared memory, one for each lane."""
    if group.batch.races is not None:
        group.batch.races.work.mbarrier_written(group, place)


def mbarrier_used(group: Group, place: Array) -> None:
    """Any other operation on barriers."""
    if group.batch.races is not None:
        group.batch.races.work.mbarrier_used(group, group.batch.mbarriers.numbers(place))
