"""What ``prove`` does: the same calls compiled without and with us, each side in a child process.

``examples`` is the list of calls, ``children`` and ``rows`` work in the command's process and
import no torch; ``start`` is the script that a child runs, and all else works there.
"""
