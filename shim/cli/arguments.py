"""Types of arguments that several commands take."""

from __future__ import annotations

import argparse

_A_DAY = 24 * 3600


def seconds(text: str) -> float:
    """A time limit.

    Raises:
        argparse.ArgumentTypeError: it is not above 0, or longer than a day.
    """
    number = float(text)
    if not 0 < number <= _A_DAY:  # neither is nan
        raise argparse.ArgumentTypeError(f"expected seconds, up to {_A_DAY}, and found {text!r}")
    return number


seconds.__name__ = "number of seconds"  # as argparse calls what float() does not take


def address(text: str) -> str:
    """Where something answers.

    Raises:
        argparse.ArgumentTypeError: it is empty, as a variable that is not set makes it.
    """
    if not text.strip():
        raise argparse.ArgumentTypeError(f"expected an address, and found {text!r}")
    return text
