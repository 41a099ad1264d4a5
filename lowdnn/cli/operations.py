"""``lowdnn operations export``: files for the people on call."""

from __future__ import annotations

import argparse
import json

from lowdnn.operations.export import export


def operations(arguments: argparse.Namespace) -> int:
    """Writes the files and prints their paths; 0."""
    paths = export(arguments.directory, scale=arguments.scale, replace=arguments.replace)
    names = [str(path) for path in paths]
    print(json.dumps({"files": names}) if arguments.json else "\n".join(names))
    return 0
