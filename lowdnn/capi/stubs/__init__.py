"""The code behind the names of the library: jumps through a table, answers without it, the start of Python."""
