"""A stand-in for the CUDA runtime over the emulated device, for programs that call it beside cuDNN.

It has the calls with which a program holds memory, streams, events and CUDA graphs, and refuses those that run kernels
of the program's own.
"""
