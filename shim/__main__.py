"""``python -m shim`` is ``flashinfer-shim``."""

from .cli import main

raise SystemExit(main())
