"""Start-up of flashinfer-shim: Python runs this file when its directory is on PYTHONPATH.

What has to stay true of it:

* It parses on Python 2.7, because every interpreter that inherits PYTHONPATH reads it.
* It prints nothing, and imports nothing that a bare interpreter has not loaded by now.
* Our part cannot fail the interpreter. An uninstalled package is a silent no-op.
* The next sitecustomize behind us on sys.path runs, and fails, as if we were not there.
"""

import os
import sys

_NAME = "sitecustomize"
_GATE = "_flashinfer_shim_gate"


def _load_by_location(name, location):
    # type: (str, str) -> None
    # Not `import shim.gate`: another distribution, or a folder of the user's, may be called shim.
    external = sys.modules["_frozen_importlib_external"]
    spec = external.spec_from_file_location(name, location)
    sys.modules["_frozen_importlib"]._load(spec)


def _rights_are_borrowed():
    # type: () -> bool
    # setuid, setgid: who set the environment has not the rights that this process has.
    return os.name == "posix" and (os.getuid(), os.getgid()) != (os.geteuid(), os.getegid())


def _install_gate(here):
    # type: (str) -> None
    packages = [os.path.join(here, "shim")]  # a checkout, or an editable install of one
    if os.path.basename(here) == "startup":
        packages.append(os.path.dirname(here))  # an installed wheel
    for package in packages:
        location = os.path.join(package, "gate.py")
        if os.path.isfile(location):
            if _GATE not in sys.modules:
                _load_by_location(_GATE, location)
            sys.modules[_GATE].install(package)
            return


def _entries_behind(here):
    # type: (str) -> list[str]
    # Only those: two files that each search the whole of sys.path would call each other for ever.
    for position, entry in enumerate(sys.path):
        # A .pth file may have put anything on sys.path, None too.
        if entry == here or (isinstance(entry, str) and os.path.realpath(entry) == here):
            return sys.path[position + 1 :]
    return []


def _run_next(entries):
    # type: (list[str]) -> None
    if not entries:
        return
    find_spec = sys.modules["_frozen_importlib_external"].PathFinder.find_spec
    if find_spec(_NAME, entries) is None:  # asked once: nearly all processes have no other
        return
    # Files in the middle of running, kept on sys because this module may be there twice: whoever
    # comes round to us again continues behind the last of them.
    running = sys.__dict__.setdefault("_flashinfer_shim_running", [])
    for entry in entries:
        spec = find_spec(_NAME, [entry])
        if spec is None or spec.loader is None:  # nothing, or a mere folder of that name
            continue
        # A loader that reads no file may have no origin.
        own, found = os.path.realpath(__file__), os.path.realpath(spec.origin or entry)
        if found == own or found in running:
            continue
        running += [own, found]
        try:
            # Puts it in sys.modules in our place, so that `import sitecustomize` gives the user's.
            sys.modules["_frozen_importlib"]._load(spec)
        finally:
            del running[-2:]
            _stay_in_front_of(entry)
        return


def _stay_in_front_of(entry):
    # type: (str) -> None
    # OpenTelemetry's file takes itself off PYTHONPATH while it works, and puts itself back in front
    # of all others. It runs no other file: the children of this process would do without us.
    try:
        stated = os.environ["PYTHONPATH"].split(os.pathsep)
        resolved = [os.path.realpath(each) for each in stated]
        ours, theirs = resolved.index(_here), resolved.index(os.path.realpath(entry))
        if theirs < ours:
            stated.insert(theirs, stated.pop(ours))
            os.environ["PYTHONPATH"] = os.pathsep.join(stated)
    except Exception:  # nosec B110  # one of them is not on it
        pass


_behind = []  # type: list[str]
try:
    # The links of the folder are resolved, not the file's: some installers link every file.
    _here = os.path.realpath(os.path.dirname(os.path.abspath(__file__)))
    if sys.version_info[:2] >= (3, 5) and __name__ == _NAME:
        _behind = _entries_behind(_here)
    if sys.version_info >= (3, 10) and sys.implementation.name == "cpython":
        if not _rights_are_borrowed():
            _install_gate(_here)
except BaseException:  # a SystemExit from here would end every Python of the process tree
    pass

# Last, and outside the guard: an error of the user's file is the user's to see.
_run_next(_behind)
