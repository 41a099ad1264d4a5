"""``python -m lowdnn`` is the ``lowdnn`` command, for a source checkout that is not installed."""

from __future__ import annotations

from lowdnn.cli.main import main

if __name__ == "__main__":
    raise SystemExit(main())
