"""Work that a stream has recorded, as an executable CUDA graph."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Self

from lowdnn import checks
from lowdnn.runtime.owned import Owned
from lowdnn.runtime.stream import Stream
from lowdnn.status import AttributeTypeError, LowdnnError


class CapturedGraph(Owned):
    """A CUgraphExec; ``launch`` runs its work again. The memory that it touches must live as long."""

    @classmethod
    def record(cls, stream: Stream, work: Callable[[], object]) -> Self:
        """The work that ``work`` gives to ``stream``, and to streams that join it, none of which runs.

        The capture ends with what ``work`` raises. Raises AttributeTypeError for what is no stream or no function.
        """
        checks.instance(stream, Stream, "CapturedGraph.stream")
        if not callable(work):
            raise AttributeTypeError.at("CapturedGraph.work", expected="a function", got=checks.shown(work))
        driver, context = stream.context.driver, stream.context
        with context.activated():
            stream.begin_capture()
            try:
                work()
            except BaseException:
                with suppress(LowdnnError):
                    driver.graph_destroy(stream.end_capture())
                raise
            graph = stream.end_capture()
            try:
                return cls(context, driver.graph_instantiate(graph), is_borrowed=False)
            finally:
                driver.graph_destroy(graph)

    def launch(self, stream: Stream) -> None:
        """Runs the work once more, in stream order."""
        checks.instance(stream, Stream, "CapturedGraph.stream")
        with self.context.activated():
            self.context.driver.graph_launch(self._open_handle(), stream.handle)

    def _destroy(self, handle: int) -> None:
        self.context.driver.graph_exec_destroy(handle)
