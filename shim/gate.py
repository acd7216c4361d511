"""The gate: notices when FlashInfer really begins to execute, and only then loads the package.

This file is loaded by location at the start of every Python process, before anything else of the
package and under a name of its own. It imports ``sys`` and nothing else; even
``from __future__ import annotations`` would be one module more than a bare interpreter has. What
few processes need is in ``handover.py``.
"""

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, MutableMapping, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

ROOT = "flashinfer"
SAID = "_FLASHINFER_SHIM_SAID"


class Gate:
    """A finder at the front of ``sys.meta_path`` that finds nothing by itself.

    Attributes:
        directory: The package's directory.
        door: By which way we came into this process: ``sitecustomize``, a plugin, ``activate()``.
        after: Module name -> what to call with that module right after its body has executed.
        fault: The traceback of the last error of ours that was kept from FlashInfer's import.
        handed_over: FlashInfer has begun to execute, and our package has been told.
    """

    flashinfer_shim_gate = True  # the mark by which any copy of us, of any version, knows another

    def __init__(self, directory: str, door: str = "sitecustomize") -> None:
        self.directory = directory
        self.door = door
        self.after: dict[str, Callable[[ModuleType], None]] = {}
        self.fault: str | None = None
        self.handed_over = False
        self._seen: set[str] = set()  # modules of FlashInfer that were not executed without us
        self._moving = sys.modules["_thread"].allocate_lock()
        self._asking: set[tuple[int, str]] = set()

    def find_spec(
        self,
        name: str,
        path: "Sequence[str] | None" = None,
        target: "ModuleType | None" = None,
    ) -> "ModuleSpec | None":
        """Return nothing until FlashInfer is asked for; from then on what the whole gate does."""
        if (name != ROOT and ROOT not in sys.modules) or not Gate._become_whole(self, name):
            return None
        return self.find_spec(name, path, target)

    def load_package(self) -> "ModuleType | None":
        """Return our package, or None if its directory is gone."""
        return self.load_package() if Gate._become_whole(self) else None

    def hand_over(self) -> None:
        """Load the package and let its hook fill ``after``; a body of FlashInfer's comes next."""
        if Gate._become_whole(self):
            self.hand_over()

    def keep(self, error: Exception) -> None:
        """Say that we cannot work, and why, instead of raising ``error``."""
        if Gate._become_whole(self):
            self.keep(error)

    # Called by way of the class, since another thread may have done it meanwhile.
    def _become_whole(self, name: str = "") -> bool:
        # By location, as this file is loaded, and known to nobody else. Where the other file was
        # uninstalled meanwhile, or is damaged, all goes on as without us.
        location = f"{self.directory}/handover.py"
        try:
            external = sys.modules["_frozen_importlib_external"]
            spec = external.spec_from_file_location("_flashinfer_shim_handover", location)
            handover = sys.modules["_frozen_importlib"].module_from_spec(spec)
            spec.loader.exec_module(handover)
            self.__class__ = handover.WHOLE
        except FileNotFoundError:
            return False
        except Exception as error:
            self.fault = f"{location} cannot be used: {type(error).__name__}: {error}"
            # Who asks for FlashInfer itself may only look; who asks for a module in it executes it.
            if name.startswith("flashinfer."):
                self._say(sys.modules["os"].environ)
            return False
        return True

    # In small what handover.py does in ``keep``: that is what there is not.
    def _say(self, environ: "MutableMapping[str, str]") -> None:
        line = f"FlashInfer is left as it is: {self.fault}; install flashinfer-shim again"
        if environ.get("FLASHINFER_SHIM", "").strip().lower() == "require":
            raise ImportError(f"FLASHINFER_SHIM=require: {line}")
        said = environ.get(SAID, "")
        if "gate" in said or environ.get("FLASHINFER_SHIM_LOG", "").strip().lower() == "off":
            return
        environ[SAID] = f"{said},gate"
        try:
            sys.stderr.write(f"flashinfer-shim: {' '.join(line.split())}\n")
        except Exception:
            return


def find_gate() -> "Gate | None":
    """Return the gate on ``sys.meta_path``, put there by whichever copy of us, or None."""
    for finder in sys.meta_path:
        # Its class, and not just true: a finder of someone else's may answer to any name, or raise.
        if getattr(type(finder), "flashinfer_shim_gate", False) is True:
            gate: Gate = finder  # type: ignore[assignment]
            return gate
    return None


def install(directory: str, door: str = "sitecustomize") -> Gate:
    """Put one gate at the front of ``sys.meta_path``, unless there is one; return it.

    Args:
        directory: The package's directory, from which FlashInfer's import will load it.
        door: By which way we come in; the first one counts.
    """
    gate = find_gate()
    if gate is None:
        gate = Gate(directory, door)
        sys.meta_path.insert(0, gate)
    return gate
