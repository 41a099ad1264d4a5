"""One module for each compute capability, by its name: ``SPEC``, the facts of the device that stands for it."""
