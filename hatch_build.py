"""Build hook: the root's files in their places in a wheel, and editable installs kept passive.

* A wheel carries the root's ``sitecustomize.py`` as ``shim/startup/sitecustomize.py``, alone in its
  directory and never at the top of site-packages, where it would run in every process.
* An editable install must not put the root on ``sys.path`` for the same reason: the root's
  ``sitecustomize.py`` would start by itself. It points at ``.editable/``, which holds nothing but
  links to the package and to the module that frameworks load as a plugin.
* That module is at the top of site-packages in a wheel, too: no other has its name.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_PLUGIN = "flashinfer_shim_plugin.py"


class StartupHook(BuildHookInterface[Any]):
    """Adds the start-up file to a wheel, or makes the directory an editable install points at."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called by hatchling before it builds ``version``: ``standard`` or ``editable``."""
        root = Path(self.root)
        if version == "editable":
            for name in ("shim", _PLUGIN):
                link = root / ".editable" / name
                link.parent.mkdir(exist_ok=True)
                if not link.is_symlink():
                    link.symlink_to(Path("..", name))
        else:
            included = build_data["force_include"]
            included[str(root / "sitecustomize.py")] = "shim/startup/sitecustomize.py"
            included[str(root / _PLUGIN)] = _PLUGIN
