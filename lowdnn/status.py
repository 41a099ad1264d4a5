"""Statuses of cuDNN 9 and the exception that each one raises.

A status code is ``category + specific``: ``code // 1000 * 1000`` is the category (2000 bad parameter,
3000 not supported, 4000 internal error, 5000 execution failed), so callers test the category and not
one exact code. Every code has one exception class; a class derives from its category's class, and from
the built-in exception that a Python user would expect (``ValueError``, ``TypeError``, ``MemoryError``...).

    LowdnnError (RuntimeError)
      NotInitializedError, SublibraryVersionMismatchError, ... (1xxx)
      BadParamError (ValueError)                 2000
        NullPointerError, MisalignedPointerError, NotFinalizedError, OutOfBoundError, ...
      NotSupportedError (NotImplementedError)    3000
        GraphPatternError, UnsupportedShapeError, UnsupportedDataTypeError, ...
      InternalError                              4000
        CompilationFailedError, HostAllocationFailedError (MemoryError), ...
      ExecutionFailedError                       5000
        CudaDriverError, ...

Message form: ``<STATUS> <object>.<field>: expected <rule>, got <value>; <what to do>``.
Source: cudnn_graph.h of cuDNN 9, cudnnStatus_t.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import ClassVar

from lowdnn.one_line import one_line


class Status(IntEnum):
    """cudnnStatus_t. Deprecated aliases keep cuDNN's names."""

    SUCCESS = 0

    NOT_INITIALIZED = 1001
    SUBLIBRARY_VERSION_MISMATCH = 1002
    SERIALIZATION_VERSION_MISMATCH = 1003
    DEPRECATED = 1004
    LICENSE_ERROR = 1005
    RUNTIME_IN_PROGRESS = 1006
    RUNTIME_FP_OVERFLOW = 1007
    SUBLIBRARY_LOADING_FAILED = 1008

    BAD_PARAM = 2000
    INVALID_VALUE = 2001
    BAD_PARAM_NULL_POINTER = 2002
    BAD_PARAM_MISALIGNED_POINTER = 2003
    BAD_PARAM_NOT_FINALIZED = 2004
    BAD_PARAM_OUT_OF_BOUND = 2005
    BAD_PARAM_SIZE_INSUFFICIENT = 2006
    BAD_PARAM_STREAM_MISMATCH = 2007
    BAD_PARAM_SHAPE_MISMATCH = 2008
    BAD_PARAM_DUPLICATED_ENTRIES = 2009
    BAD_PARAM_ATTRIBUTE_TYPE = 2010
    BAD_PARAM_CUDA_GRAPH_MISMATCH = 2011
    BAD_PARAM_DESCRIPTOR_TYPE = 2012

    NOT_SUPPORTED = 3000
    NOT_SUPPORTED_GRAPH_PATTERN = 3001
    NOT_SUPPORTED_SHAPE = 3002
    NOT_SUPPORTED_DATA_TYPE = 3003
    NOT_SUPPORTED_LAYOUT = 3004
    NOT_SUPPORTED_INCOMPATIBLE_CUDA_DRIVER = 3005
    NOT_SUPPORTED_INCOMPATIBLE_CUDART = 3006
    NOT_SUPPORTED_ARCH_MISMATCH = 3007
    NOT_SUPPORTED_RUNTIME_PREREQUISITE_MISSING = 3008
    NOT_SUPPORTED_SUBLIBRARY_UNAVAILABLE = 3009
    NOT_SUPPORTED_SHARED_MEMORY_INSUFFICIENT = 3010
    NOT_SUPPORTED_PADDING = 3011
    NOT_SUPPORTED_BAD_LAUNCH_PARAM = 3012
    NOT_SUPPORTED_CUDA_GRAPH_NATIVE_API = 3013
    NOT_SUPPORTED_INVALID_DYNAMIC_SHAPE = 3014

    INTERNAL_ERROR = 4000
    INTERNAL_ERROR_COMPILATION_FAILED = 4001
    INTERNAL_ERROR_UNEXPECTED_VALUE = 4002
    INTERNAL_ERROR_HOST_ALLOCATION_FAILED = 4003
    INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED = 4004
    INTERNAL_ERROR_BAD_LAUNCH_PARAM = 4005
    INTERNAL_ERROR_TEXTURE_CREATION_FAILED = 4006

    EXECUTION_FAILED = 5000
    EXECUTION_FAILED_CUDA_DRIVER = 5001
    EXECUTION_FAILED_CUBLAS = 5002
    EXECUTION_FAILED_CUDART = 5003
    EXECUTION_FAILED_CURAND = 5004

    ALLOC_FAILED = INTERNAL_ERROR_HOST_ALLOCATION_FAILED
    ARCH_MISMATCH = NOT_SUPPORTED_ARCH_MISMATCH
    MAPPING_ERROR = INTERNAL_ERROR_TEXTURE_CREATION_FAILED
    RUNTIME_PREREQUISITE_MISSING = NOT_SUPPORTED_RUNTIME_PREREQUISITE_MISSING
    VERSION_MISMATCH = SUBLIBRARY_VERSION_MISMATCH

    @property
    def category(self) -> Status:
        """The category's own code: 0, 2000, 3000, 4000 or 5000; uncategorised 1xxx codes are their own."""
        return self if self < 2000 else Status(self // 1000 * 1000)

    @property
    def c_name(self) -> str:
        """The name in cudnn_graph.h, for example ``CUDNN_STATUS_BAD_PARAM_NULL_POINTER``."""
        return f"CUDNN_STATUS_{self.name}"


class LowdnnError(RuntimeError):
    """Base of every error that lowdnn raises, a RuntimeError as all that cudnn-frontend raises.

    ``status`` is the class's cuDNN status.
    """

    status: ClassVar[Status] = Status.INTERNAL_ERROR

    def __init__(self, detail: str) -> None:
        super().__init__(f"{self.status.name} {detail}")
        self.detail = detail

    def __reduce__(self) -> tuple[Callable[..., LowdnnError], tuple[object, ...]]:
        """Pickles and copies restore the error's attributes, since ``__init__`` takes other arguments."""
        return _restored, (type(self), self.args, self.__dict__.copy())

    @classmethod
    def at(cls, where: str, *, expected: object, got: object, hint: str = "") -> LowdnnError:
        """The error in the library's message form; ``where`` is ``object.field``.

        Control characters of callers' text are escaped; line breaks stay in longer reports.
        """
        rest = f"expected {expected}, got {got}" + (f"; {hint}" if hint else "")
        return cls(one_line(where) + ": " + one_line(rest, keep="\n"))

    @property
    def category(self) -> Status:
        return self.status.category


class NotInitializedError(LowdnnError):
    """The object was closed, never opened, or belongs to another process (fork) or a finished interpreter."""

    status = Status.NOT_INITIALIZED


class SublibraryVersionMismatchError(LowdnnError, ImportError):
    """Parts of the installation have different versions (for example NVRTC and the PTX manifest)."""

    status = Status.SUBLIBRARY_VERSION_MISMATCH


class SerializationVersionMismatchError(LowdnnError, ValueError):
    """A serialised plan or graph has a schema version that this library does not read."""

    status = Status.SERIALIZATION_VERSION_MISMATCH


class DeprecatedError(LowdnnError):
    status = Status.DEPRECATED


class LicenseError(LowdnnError):
    status = Status.LICENSE_ERROR


class RuntimeInProgressError(LowdnnError):
    """Work that the call needs is still running; it may be repeated."""

    status = Status.RUNTIME_IN_PROGRESS


class RuntimeFpOverflowError(LowdnnError, OverflowError):
    status = Status.RUNTIME_FP_OVERFLOW


class SublibraryLoadingFailedError(LowdnnError, ImportError):
    """A shared library (CUDA driver, NVRTC) could not be loaded."""

    status = Status.SUBLIBRARY_LOADING_FAILED


class BadParamError(LowdnnError, ValueError):
    """An argument breaks a rule of the API."""

    status = Status.BAD_PARAM


class InvalidValueError(BadParamError):
    status = Status.INVALID_VALUE


class NullPointerError(BadParamError):
    status = Status.BAD_PARAM_NULL_POINTER


class MisalignedPointerError(BadParamError):
    status = Status.BAD_PARAM_MISALIGNED_POINTER


class NotFinalizedError(BadParamError):
    """A descriptor is used before ``finalize``."""

    status = Status.BAD_PARAM_NOT_FINALIZED


class OutOfBoundError(BadParamError, IndexError):
    status = Status.BAD_PARAM_OUT_OF_BOUND


class SizeInsufficientError(BadParamError):
    """A buffer or array is smaller than needed; the message gives both sizes."""

    status = Status.BAD_PARAM_SIZE_INSUFFICIENT


class StreamMismatchError(BadParamError):
    """A stream or pointer belongs to another device or context than the handle."""

    status = Status.BAD_PARAM_STREAM_MISMATCH


class ShapeMismatchError(BadParamError):
    status = Status.BAD_PARAM_SHAPE_MISMATCH


class DuplicatedEntriesError(BadParamError):
    status = Status.BAD_PARAM_DUPLICATED_ENTRIES


class AttributeTypeError(BadParamError, TypeError):
    """An attribute has another type, or is not one of the descriptor's attributes."""

    status = Status.BAD_PARAM_ATTRIBUTE_TYPE


class CudaGraphMismatchError(BadParamError):
    status = Status.BAD_PARAM_CUDA_GRAPH_MISMATCH


class DescriptorTypeError(BadParamError, TypeError):
    status = Status.BAD_PARAM_DESCRIPTOR_TYPE


class NotSupportedError(LowdnnError, NotImplementedError):
    """The request is valid, and nothing here can do it; the message says what was tried."""

    status = Status.NOT_SUPPORTED


class GraphPatternError(NotSupportedError):
    status = Status.NOT_SUPPORTED_GRAPH_PATTERN


class UnsupportedShapeError(NotSupportedError):
    status = Status.NOT_SUPPORTED_SHAPE


class UnsupportedDataTypeError(NotSupportedError):
    status = Status.NOT_SUPPORTED_DATA_TYPE


class UnsupportedLayoutError(NotSupportedError):
    status = Status.NOT_SUPPORTED_LAYOUT


class IncompatibleCudaDriverError(NotSupportedError):
    status = Status.NOT_SUPPORTED_INCOMPATIBLE_CUDA_DRIVER


class IncompatibleCudartError(NotSupportedError):
    status = Status.NOT_SUPPORTED_INCOMPATIBLE_CUDART


class ArchMismatchError(NotSupportedError):
    status = Status.NOT_SUPPORTED_ARCH_MISMATCH


class RuntimePrerequisiteMissingError(NotSupportedError):
    """Something that is installed apart from lowdnn is missing; the message names it and how to get it."""

    status = Status.NOT_SUPPORTED_RUNTIME_PREREQUISITE_MISSING


class SublibraryUnavailableError(NotSupportedError):
    status = Status.NOT_SUPPORTED_SUBLIBRARY_UNAVAILABLE


class SharedMemoryInsufficientError(NotSupportedError):
    status = Status.NOT_SUPPORTED_SHARED_MEMORY_INSUFFICIENT


class UnsupportedPaddingError(NotSupportedError):
    status = Status.NOT_SUPPORTED_PADDING


class UnsupportedLaunchParamError(NotSupportedError):
    status = Status.NOT_SUPPORTED_BAD_LAUNCH_PARAM


class CudaGraphNativeApiError(NotSupportedError):
    status = Status.NOT_SUPPORTED_CUDA_GRAPH_NATIVE_API


class InvalidDynamicShapeError(NotSupportedError):
    status = Status.NOT_SUPPORTED_INVALID_DYNAMIC_SHAPE


class InternalError(LowdnnError):
    """A defect of lowdnn or of something below it; never the caller's fault."""

    status = Status.INTERNAL_ERROR


class CompilationFailedError(InternalError):
    """NVRTC or the assembler rejected a kernel; the message holds the compiler's log."""

    status = Status.INTERNAL_ERROR_COMPILATION_FAILED


class UnexpectedValueError(InternalError):
    status = Status.INTERNAL_ERROR_UNEXPECTED_VALUE


class HostAllocationFailedError(InternalError, MemoryError):
    status = Status.INTERNAL_ERROR_HOST_ALLOCATION_FAILED


class DeviceAllocationFailedError(InternalError, MemoryError):
    status = Status.INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED


class BadLaunchParamError(InternalError):
    status = Status.INTERNAL_ERROR_BAD_LAUNCH_PARAM


class TextureCreationFailedError(InternalError):
    status = Status.INTERNAL_ERROR_TEXTURE_CREATION_FAILED


class ExecutionFailedError(LowdnnError):
    """Work on the device failed."""

    status = Status.EXECUTION_FAILED


class CudaDriverError(ExecutionFailedError):
    """A CUDA driver call failed; the message names the call, its arguments and the CUresult."""

    status = Status.EXECUTION_FAILED_CUDA_DRIVER


class CublasError(ExecutionFailedError):
    status = Status.EXECUTION_FAILED_CUBLAS


class CudartError(ExecutionFailedError):
    status = Status.EXECUTION_FAILED_CUDART


class CurandError(ExecutionFailedError):
    status = Status.EXECUTION_FAILED_CURAND


class LowdnnWarning(UserWarning):
    """Base of lowdnn's warnings."""


class EmulatedDeviceWarning(LowdnnWarning):
    """``auto`` found no GPU and took the emulated device."""


def _restored(cls: type[LowdnnError], arguments: tuple[object, ...], fields: dict[str, object]) -> LowdnnError:
    error = Exception.__new__(cls)
    # The built-in exception that follows LowdnnError has fields of its own (ImportError's ``msg``).
    super(LowdnnError, error).__init__(*arguments)
    error.__dict__.update(fields)
    return error


def _exceptions_by_status() -> dict[Status, type[LowdnnError]]:
    found: dict[Status, type[LowdnnError]] = {}
    pending: list[type[LowdnnError]] = list(LowdnnError.__subclasses__())
    while pending:
        cls = pending.pop()
        if "status" in vars(cls):
            found.setdefault(cls.status, cls)
        pending.extend(cls.__subclasses__())
    return found


#: The exception class of each status other than SUCCESS (classes declared in this module).
EXCEPTIONS: dict[Status, type[LowdnnError]] = _exceptions_by_status()
