"""``python -m lowdnn.capi program.py ...`` runs a Python program on lowdnn's library in the place of cuDNN's."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from lowdnn.capi.running import run

_USAGE = "usage: python -m lowdnn.capi PROGRAM.py ... (or -m MODULE ..., -c CODE ..., as python takes them)\n"


def main(arguments: Sequence[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help"):
        (sys.stdout if arguments else sys.stderr).write(_USAGE)
        return 0 if arguments else 2
    return run(arguments)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
