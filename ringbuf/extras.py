"""Commands that install optional packages next to this installation of Brim, for the hints of errors."""

from __future__ import annotations

import shlex
import shutil
import sys
from pathlib import Path


def install_extra(extra: str) -> str:
    """The command for an extra of Brim. It names the clone or wheel of this installation, if that exists."""
    installed_from, options = _origin()
    return install_package(f"{installed_from or 'brim'}[{extra}]", *options)


def install_package(requirement: str, *options: str) -> str:
    """The command for another package, with the pip of this Python."""
    own_pip = Path(sys.executable).parent / "pip"
    is_on_path = shutil.which("pip") == str(own_pip)
    pip = ["pip"] if is_on_path or not sys.executable else [sys.executable, "-m", "pip"]
    return shlex.join([*pip, "install", *options, requirement])


def _origin() -> tuple[str, tuple[str, ...]]:
    """The local path that pip installed Brim from, and pip's options for it; "": unknown, or removed."""
    import json
    from importlib.metadata import PackageNotFoundError, distribution  # 15 ms: not for each start
    from urllib.parse import unquote, urlsplit

    try:
        recorded = json.loads(distribution("brim").read_text("direct_url.json") or "{}")  # PEP 610
        url = urlsplit(recorded.get("url", ""))
        is_editable = recorded.get("dir_info", {}).get("editable", False)
    except (PackageNotFoundError, OSError, ValueError, AttributeError):
        return "", ()
    path = unquote(url.path)
    if url.scheme != "file" or not Path(path).exists():
        return "", ()
    return path, ("-e",) if is_editable else ()
