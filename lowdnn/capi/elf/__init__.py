"""Shared objects in the ELF format, written from their parts."""
