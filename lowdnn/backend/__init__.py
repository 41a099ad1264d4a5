"""The C backend API as Python objects: handles, descriptors, execute.

    handle = Handle.open("auto")
    tensor = create(DescriptorType.TENSOR)
    tensor.set_attribute(AttributeName.TENSOR_UNIQUE_ID, AttributeType.INT64, 1)
    ...
    tensor.finalize()
    execute(handle, plan, variant_pack)

Names, numbers and the order of calls are those of cudnnBackendCreateDescriptor, SetAttribute, Finalize, GetAttribute
and Execute; failures raise the exception of the status that the C function would return.
"""

from lowdnn.backend.catalogue import create
from lowdnn.backend.descriptor import Descriptor
from lowdnn.backend.execute import execute
from lowdnn.backend.handle import Handle

__all__ = ["Descriptor", "Handle", "create", "execute"]
