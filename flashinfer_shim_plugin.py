"""What vLLM's and SGLang's plugins lead to: the package beside this file, whatever else is `shim`.

Both frameworks load whatever is installed, so this must change nothing where nobody has asked for
us. It is no part of the package, for another `shim` may come first on ``sys.path``, and that one
would be imported.
"""

import os
import sys

_GATE = "_flashinfer_shim_gate"


def vllm() -> None:
    """Enter by vLLM's door; called once in each of its processes."""
    _enter("vllm")


def sglang() -> None:
    """Enter by SGLang's door; called once in each of its processes."""
    _enter("sglang")


def _enter(door: str) -> None:
    # Not the file's own links, which installers make; a folder's are resolved by the package.
    package = os.path.join(os.path.dirname(os.path.abspath(__file__)), "shim")
    location = os.path.join(package, "gate.py")
    if not os.environ.get("FLASHINFER_SHIM") or not os.path.isfile(location):
        return
    if os.name == "posix" and (os.getuid(), os.getgid()) != (os.geteuid(), os.getegid()):
        return  # setuid, setgid: as sitecustomize.py has it
    if _GATE not in sys.modules:
        external = sys.modules["_frozen_importlib_external"]
        spec = external.spec_from_file_location(_GATE, location)
        sys.modules["_frozen_importlib"]._load(spec)
    gate = sys.modules[_GATE].Gate(os.path.realpath(package))
    try:
        ours = gate.load_package()
        if ours is not None:
            __import__(f"{ours.__name__}.plugins")
            sys.modules[f"{ours.__name__}.plugins"].enter(door)
    except Exception as error:
        gate.keep(error)
