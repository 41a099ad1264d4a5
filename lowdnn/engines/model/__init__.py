"""The one model of the machine: how many blocks it holds, how long they take, and the fastest of many candidates."""
