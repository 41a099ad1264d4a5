"""lowdnn where PyTorch is not installed."""

from __future__ import annotations

import subprocess
import sys


def test_the_extra_is_named() -> None:
    program = "import sys; sys.modules['torch'] = None; import lowdnn; lowdnn.empty; import lowdnn.torch"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    expected = "ModuleNotFoundError: lowdnn.torch needs PyTorch: pip install 'lowdnn[torch]'"
    assert done.stderr.splitlines()[-1] == expected
