"""The command `brim`: checks that its packages are those of this installation, then runs edge.cli.

Other distributions may own the names edge, bridge, persistence and ringbuf. So the command starts in `brim`,
a package that only this distribution has. The check compares the paths of four import specs. Metadata of
installed distributions is read only after a mistake was found.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["main"]

PACKAGES = ("edge", "bridge", "persistence", "ringbuf")
HOME = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
STATUS = 2  # Exit.USAGE of edge.cli, which cannot be imported here
INTERRUPTED = 130  # Exit.INTERRUPTED


def main() -> int:
    """Run the command; return the exit status, also if Ctrl-C ends its imports."""
    try:
        return _run()
    except KeyboardInterrupt:
        return INTERRUPTED


def _run() -> int:
    for name in PACKAGES:
        path = _found(name)
        if path != _expected(name) and not _is_same(path, _expected(name)):
            return _refuse(name, path)
    try:
        from edge.cli import main as run

        return run()
    except ImportError:  # perhaps because another distribution has overwritten files of a package
        for name in PACKAGES:
            if any(_owners(_expected(name))):
                return _refuse(name, _expected(name))
        raise


def _expected(name: str) -> str:
    return os.path.join(HOME, name, "__init__.py")


def _found(name: str) -> str:
    """Path of the file or folder that `import name` loads; "" if there is none."""
    for finder in sys.meta_path:
        spec = finder.find_spec(name, None)
        if spec is not None:
            return spec.origin or next(iter(spec.submodule_search_locations or ()), "")
    return ""


def _is_same(path: str, expected: str) -> bool:
    return os.path.exists(path) and os.path.exists(expected) and os.path.samefile(path, expected)


def _refuse(name: str, path: str) -> int:
    """Name the file, its owner and the remedy."""
    owner = next(_owners(path), "")
    if not path:
        text, remedy = f"the package {name} is not installed", "install brim again"
    elif owner:
        text = f"{path} belongs to the distribution {owner}, not to brim"
        remedy = (
            f"run `pip uninstall {owner.partition(' ')[0]}` and install brim again, or use a new environment"
        )
    else:
        text = f"{path} is not a file of brim (expected {_expected(name)})"
        remedy = "remove it, or its folder from PYTHONPATH, or start brim in another directory"
    print(f"brim: {text}\n  {remedy}", file=sys.stderr)
    return STATUS


def _owners(path: str) -> Iterator[str]:
    """Name and version of each other distribution that has installed this file."""
    from importlib.metadata import distributions

    for distribution in distributions():
        if distribution.name != "brim" and any(
            file.name == os.path.basename(path) and os.path.abspath(str(file.locate())) == path
            for file in distribution.files or ()
        ):
            yield f"{distribution.name} {distribution.version}"
