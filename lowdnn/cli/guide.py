"""``lowdnn guide``: the list of topics, or the page of one."""

from __future__ import annotations

import argparse

from lowdnn.guide.pages import page, topics


def guide(arguments: argparse.Namespace) -> int:
    """Prints the page of ``arguments.topic``, or all topics with their titles; 0."""
    if arguments.topic is not None:
        print(page(arguments.topic).text, end="")
        return 0
    width = max(map(len, topics()))
    print("lowdnn guide TOPIC prints one of:\n")
    for topic in topics():
        print(f"  {topic.ljust(width)}  {page(topic).title}")
    return 0
