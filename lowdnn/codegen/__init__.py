"""CUDA C++ text of one functor from a graph of pointwise operations."""
