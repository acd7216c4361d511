"""Build hook: ``sitecustomize.py`` in its place in a wheel, and editable installs kept passive.

* A wheel carries the root's ``sitecustomize.py`` as ``shim/startup/sitecustomize.py``, alone in its
  directory and never at the top of site-packages, where it would run in every process.
* An editable install must not put the root on ``sys.path`` for the same reason: the root's
  ``sitecustomize.py`` would start by itself. It points at ``.editable/``, which holds nothing but a
  link to the package.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class StartupHook(BuildHookInterface[Any]):
    """Adds the start-up file to a wheel, or makes the directory an editable install points at."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called by hatchling before it builds ``version``: ``standard`` or ``editable``."""
        root = Path(self.root)
        if version == "editable":
            link = root / ".editable" / "shim"
            link.parent.mkdir(exist_ok=True)
            if not link.is_symlink():
                link.symlink_to(Path("..", "shim"), target_is_directory=True)
        else:
            source = root / "sitecustomize.py"
            build_data["force_include"][str(source)] = "shim/startup/sitecustomize.py"
