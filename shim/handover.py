"""The rest of the gate: what it does from the moment on when FlashInfer is asked for.

Loaded by location, by ``gate.py``, in processes that ask where FlashInfer is. They may not import
it afterwards, so nothing is imported here either before FlashInfer executes.
"""

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

    from .gate import Gate as Begun
else:
    Begun = object  # an object of that class gets this one, which needs nothing of it then

ROOT = "flashinfer"
PACKAGE = "shim"
PRIVATE_PACKAGE = "_flashinfer_shim"
SAID = "_FLASHINFER_SHIM_SAID"  # inherited: what this process tree has been told


class GatedLoader:
    """A module's own loader, save that the gate hears of the execution of its body.

    Everything but ``exec_module`` is the original's, its class as ``isinstance`` sees it and its
    pickle included, because the spec is also handed to callers who only look.
    """

    def __init__(self, gate: "Gate", name: str, loader: "Any") -> None:
        self.__gate = gate
        self.__name = name
        self.__loader = loader

    @property  # type: ignore[misc]
    def __class__(self) -> "Any":
        return type(self.__loader)

    def __getattr__(self, attribute: str) -> "Any":
        return getattr(self.__loader, attribute)

    def __reduce_ex__(self, protocol: "Any") -> "Any":
        return self.__loader.__reduce_ex__(protocol)

    def exec_module(self, module: "ModuleType") -> None:
        """Execute the body of ``module``, with the gate's two calls before and after it."""
        # First of all, so that no one who looks at the module, its own body included, finds us.
        ours: Any = self
        if module.__loader__ is ours:
            module.__loader__ = self.__loader
        if module.__spec__ is not None and module.__spec__.loader is ours:
            module.__spec__.loader = self.__loader
        if self.__name == ROOT or not self.__gate.handed_over:
            self.__gate.hand_over(late=self.__name != ROOT)
        self.__loader.exec_module(module)
        self.__gate.executed(self.__name, module)


class Gate(Begun):
    """What the gate becomes; its attributes are explained in ``gate.py``."""

    flashinfer_shim_gate = True

    def find_spec(
        self,
        name: str,
        path: "Sequence[str] | None" = None,
        target: "ModuleType | None" = None,
    ) -> "ModuleSpec | None":
        """Return the spec that the finders behind us give, its loader gated; no side effects.

        Anyone may ask at any time (``importlib.util.find_spec``) without importing afterwards.
        """
        try:
            # A finder in front of us answered for FlashInfer, as typeguard's import hook does. Its
            # next module is where we come in. Otherwise we stay behind: what others do to a module
            # after it was executed is to find our functions there.
            passed = not self.handed_over and ROOT in sys.modules
            if passed:
                self._come_first()
            inside = passed and name.startswith(ROOT + ".")
            if name != ROOT and name not in self.after and not inside:
                return None
            asking = (sys.modules["_thread"].get_ident(), name)
            # A finder behind us may itself ask all the others, us among them; in that thread we
            # then have nothing to say.
            if asking in self._asking:
                return None
            finders = self._behind()
            self._asking.add(asking)
        except Exception as error:
            self.keep(error)
            return None
        try:
            spec = self._ask(finders, name, path, target)
        finally:
            self._asking.discard(asking)
        if spec is not None:
            try:
                self._set_loader(name, spec)
            except Exception as error:  # a loader, or a spec, of somebody else's making
                self.keep(error)
        return spec

    def _behind(self) -> "list[Any]":
        # The finders in front of us have been asked already.
        finders: list[Any] = list(sys.meta_path)
        own = next((i for i, finder in enumerate(finders) if finder is self), -1)
        return finders[own + 1 :]

    @staticmethod
    def _ask(
        finders: "list[Any]", name: str, path: "Sequence[str] | None", target: "ModuleType | None"
    ) -> "ModuleSpec | None":
        # Unguarded: what a finder raises is raised without us, too.
        for finder in finders:
            find_spec = getattr(finder, "find_spec", None)
            if find_spec is not None:
                spec: ModuleSpec | None = find_spec(name, path, target)
                if spec is not None:
                    return spec
        return None

    def _set_loader(self, name: str, spec: "ModuleSpec") -> None:
        # Namespace packages have no loader, legacy loaders no exec_module: both stay as they are.
        loader: Any = spec.loader
        if type(loader) is not GatedLoader and hasattr(loader, "exec_module"):
            gated: Any = GatedLoader(self, name, loader)
            spec.loader = gated

    def _come_first(self) -> None:
        if not self._moving.acquire(False):
            return  # another thread is at it
        try:
            own = next((i for i, finder in enumerate(sys.meta_path) if finder is self), 0)
            if own:
                # In front first, then gone from behind: no thread may find us missing.
                sys.meta_path.insert(0, self)
                if sys.meta_path[own + 1] is self:
                    del sys.meta_path[own + 1]
        finally:
            self._moving.release()

    def hand_over(self, *, late: bool = False) -> None:
        """Load the package and let its hook fill ``after``; a body of FlashInfer's comes next.

        Args:
            late: it is not the first one, which a finder in front of us has found: what has been
                executed meanwhile is patched, too.

        Raises:
            Exception: Only one that bears a true ``flashinfer_shim_refusal``.
        """
        self.fault = None
        self.handed_over = True
        try:
            hook = self._load_hook()
            if hook is not None and late:
                hook.activate(again=False)
            elif hook is not None:
                hook.engage(self)
        except Exception as error:
            self.keep(error)

    def executed(self, name: str, module: "ModuleType") -> None:
        """Call what waits for ``module``, whose body has just executed.

        Raises:
            Exception: Only one that bears a true ``flashinfer_shim_refusal``.
        """
        try:
            callback = self.after.get(name)
            self._seen.add(name)
            if callback is not None:
                callback(module)
            if self._found_by_others():
                hook = self._load_hook()
                if hook is not None:
                    hook.activate(again=False)
        except Exception as error:
            self.keep(error)

    def _found_by_others(self) -> "set[str]":
        # A finder in front of us may answer for one module of FlashInfer alone. Each counts once,
        # and not before the end of its body.
        found = {
            name
            for name in self.after
            if name not in self._seen
            and name in sys.modules
            and not getattr(getattr(sys.modules[name], "__spec__", None), "_initializing", False)
        }
        self._seen |= found
        return found

    def _load_hook(self) -> "Any":
        package = self.load_package()
        if package is None:
            return None
        from importlib import import_module

        hook = package.__name__ + ".hook"
        changed: Any = getattr(package, "changed", str)  # not every version has it
        if hook not in sys.modules and changed():
            raise ImportError(changed())
        return import_module(hook)

    def load_package(self) -> "ModuleType | None":
        """Return our package, or None if its directory is gone.

        It is called ``shim`` where that name is, or would be, ours. Where another distribution or
        folder has the name, ours is loaded by location under a private one.
        """
        from importlib import import_module, util
        from os.path import isfile, join

        if not isfile(join(self.directory, "hook.py")):
            return None
        if PACKAGE in sys.modules:
            location = getattr(sys.modules[PACKAGE], "__file__", None)
        else:
            found = util.find_spec(PACKAGE)
            location = None if found is None else found.origin
        if self._is_ours(location):
            return import_module(PACKAGE)
        if PRIVATE_PACKAGE in sys.modules:
            return sys.modules[PRIVATE_PACKAGE]
        spec = util.spec_from_file_location(
            PRIVATE_PACKAGE,
            join(self.directory, "__init__.py"),
            submodule_search_locations=[self.directory],
        )
        package: ModuleType = sys.modules["_frozen_importlib"]._load(spec)
        return package

    def _is_ours(self, location: "str | None") -> bool:
        from os.path import dirname, realpath

        return location is not None and realpath(dirname(location)) == realpath(self.directory)

    def keep(self, error: Exception) -> None:
        """Say that we cannot work, and why, instead of raising ``error``.

        Raises:
            Exception: ``error`` itself if it bears a true ``flashinfer_shim_refusal``; with
                ``FLASHINFER_SHIM=require``, an ImportError that does.
        """
        if getattr(error, "flashinfer_shim_refusal", False):
            raise error
        from os import environ
        from traceback import format_exception

        # As text: the exception itself would keep alive every frame it passed through.
        self.fault = "".join(format_exception(error))
        line = (
            f"FlashInfer is left as it is, flashinfer-shim in {self.directory} cannot work: "
            f"{type(error).__name__}: {error}; install flashinfer-shim again with what it needs, "
            "or take it off PYTHONPATH"
        )
        if environ.get("FLASHINFER_SHIM", "").strip().lower() == "require":
            refusal = ImportError(f"FLASHINFER_SHIM=require: {line}")
            refusal.flashinfer_shim_refusal = True  # type: ignore[attr-defined]
            raise refusal from error
        self._tell(line, environ)

    def _tell(self, line: str, environ: "Any") -> None:
        # The package's own way of saying it is what may be missing: so once more, in small.
        said = [word for word in environ.get(SAID, "").split(",") if word]
        if "gate" in said or environ.get("FLASHINFER_SHIM_LOG", "").strip().lower() == "off":
            return
        environ[SAID] = ",".join([*said, "gate"])
        try:
            sys.stderr.write(f"flashinfer-shim: {' '.join(line.split())}\n")
            sys.stderr.flush()
        except Exception:
            return


#: The last line: a file that was cut off, wherever that was, has none.
WHOLE = Gate
