"""Files of text that a user names: read whole, under a bound, and told by their names where they are not readable."""

from __future__ import annotations

import os
import stat

from lowdnn.status import BadParamError

_READ_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


def read_text(path: str | os.PathLike[str], where: str, rule: str, most_bytes: int) -> str:
    """The text of a regular file of at most ``most_bytes`` bytes of UTF-8.

    Raises BadParamError for ``where``, by ``rule``, for another one: a pipe is not waited for.
    """
    try:
        with open(path, "rb", opener=lambda name, _: os.open(name, _READ_FLAGS)) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise BadParamError.at(where, expected=rule, got=f"{os.fspath(path)!r}, which is no regular file")
            content = file.read(most_bytes + 1)
        if len(content) > most_bytes:
            raise BadParamError.at(where, expected=f"{rule} of at most {most_bytes} bytes", got=repr(os.fspath(path)))
        return content.decode("utf-8")
    except BadParamError:
        raise
    except (OSError, ValueError) as error:  # ValueError: the content is no text, or the name is no path
        raise BadParamError.at(where, expected=rule, got=f"{os.fspath(path)!r}: {error}") from None
