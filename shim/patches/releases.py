"""The releases of FlashInfer that the suite was run on, oldest first, from ``releases.json``.

``tests/write_rows.py`` writes the file; docs/compatibility.md tells how a release gets into it.
"""

from __future__ import annotations

import json
from pathlib import Path

FILE = Path(__file__).with_name("releases.json")

RELEASES: tuple[str, ...] = tuple(json.loads(FILE.read_text(encoding="utf-8")))
