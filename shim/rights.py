"""Whether this process has rights that whoever started it has not."""

from __future__ import annotations

import os


def rights_are_borrowed() -> bool:
    """Whether the program is setuid or setgid: its environment is of a user with other rights.

    ``sitecustomize.py`` and the plugin ask the same, in words of their own.
    """
    return os.name == "posix" and (os.getuid(), os.getgid()) != (os.geteuid(), os.getegid())
