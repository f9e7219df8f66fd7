"""The project's own places and tools, for tests about the project itself."""

import importlib.util
from importlib.machinery import SourceFileLoader
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("bridge", "brim", "edge", "persistence", "ringbuf")

# `dev` has no suffix, so an import statement cannot find it.
_loader = SourceFileLoader("dev", str(ROOT / "dev"))
_spec = importlib.util.spec_from_loader("dev", _loader)
assert _spec is not None
dev = importlib.util.module_from_spec(_spec)
_loader.exec_module(dev)
