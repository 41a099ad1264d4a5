"""The device that serves: a handle with the network, which is replaced where it has become useless."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from itertools import cycle

import numpy as np

import lowdnn
from lowdnn.status import LowdnnError
from tools.examples.service.model import BATCH, PIXELS, Array, Classifier

_LOG = logging.getLogger("service.device")
#: A handle is opened this many times before the process gives up, with longer and longer waits between.
_ATTEMPTS = 6
_FIRST_WAIT_S = 0.05


class DeviceLostError(RuntimeError):
    """No handle can be opened any more. A GPU's context that a kernel has broken ends with its process."""


class Device:
    """A classifier on ``name`` (``cuda``, ``emulated`` or ``auto``); for one thread at a time.

    A batch that fails raises its error, and the next one runs: on the same handle, or, where a batch of zeros fails
    too, on a new one. faults: calls of the driver that are to fail, as ``lowdnn.create_handle`` has them, one text for
    each handle in turn, over and over.
    """

    def __init__(self, name: str | None, bundle: lowdnn.Bundle | None, faults: Sequence[str] = ()) -> None:
        self._name = name
        self._bundle = bundle
        self._faults = cycle(faults or ("",))
        self.handles_opened = 0
        self._handle, self._classifier = self._opened()

    def scores(self, images: Array) -> Array:
        """As ``Classifier.scores``. Raises LowdnnError where this batch fails, DeviceLostError where all will."""
        try:
            return self._classifier.scores(images)
        except LowdnnError as error:
            _LOG.warning("batch_failed error=%r", str(error))
            self._recover()
            raise

    def counters(self) -> Mapping[str, int]:
        """Counts of the handle that is open now."""
        return self._handle.runtime.counters.snapshot()

    def close(self) -> None:
        self._handle.close()

    def _recover(self) -> None:
        """Replaces the handle unless a batch of zeros runs."""
        try:
            self._classifier.scores(np.zeros((BATCH, PIXELS), np.float32))
        except LowdnnError as error:
            _LOG.warning("handle_replaced error=%r", str(error))
            self._handle.close()
            self._handle, self._classifier = self._opened()

    def _opened(self) -> tuple[lowdnn.Handle, Classifier]:
        """A new handle whose network has run once, so that the first request waits for no compiler."""
        for attempt in range(_ATTEMPTS):
            handle = lowdnn.create_handle(self._name, bundle=self._bundle, faults=next(self._faults))
            try:
                classifier = Classifier(handle)
                classifier.scores(np.zeros((BATCH, PIXELS), np.float32))
            except LowdnnError as error:
                _LOG.warning("handle_failed attempt=%d error=%r", attempt + 1, str(error))
                handle.close()
                time.sleep(_FIRST_WAIT_S * 2**attempt)
            else:
                self.handles_opened += 1
                return handle, classifier
        raise DeviceLostError(f"{_ATTEMPTS} handles in turn could not run the network")
