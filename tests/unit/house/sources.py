# SPDX-License-Identifier: Apache-2.0
"""Files of the project, and their syntax trees.

A syntax tree is kept until the next file is parsed: the trees of all files are
a million objects, and the garbage collector takes longer to walk them than
Python to parse the files again.
"""

import ast
import functools
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PACKAGES = ("nova_accel", "placement_sync", "filters", "virt_hooks")
SOURCE_SUFFIXES = {
    ".S", ".asm", ".c", ".cfg", ".h", ".ini", ".ld", ".py", ".s", ".sh",
    ".toml",
}  # fmt: skip
GENERATED = {"build", "dist", "__pycache__", "node_modules"}


def walk(top: Path) -> Iterator[Path]:
    """Yield the files of the project below a directory, build output not."""
    for directory, names, files in os.walk(top):
        names[:] = sorted(
            name
            for name in names
            if name not in GENERATED
            and not name.endswith(".egg-info")
            and (not name.startswith(".") or name == ".ci")
        )
        for name in sorted(files):
            path = Path(directory, name)
            if not path.is_symlink():
                yield path


def is_source(path: Path) -> bool:
    if path.suffix in SOURCE_SUFFIXES or path.name == "Makefile":
        return True
    with path.open("rb") as file:
        return not path.suffix and file.read(2) == b"#!"


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def module_name(path: Path) -> str:
    parts = list(path.relative_to(ROOT).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@functools.lru_cache(maxsize=1)
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), str(path))


@functools.lru_cache(maxsize=1)
def list_nodes(path: Path) -> Sequence[ast.AST]:
    """Return all nodes of a module's syntax tree."""
    return list(ast.walk(tree(path)))


FILES = list(walk(ROOT))
SOURCES = [path for path in FILES if is_source(path)]
PYTHON = [path for path in SOURCES if path.suffix == ".py"]
MODULES = [
    path for path in PYTHON if relative(path).partition("/")[0] in PACKAGES
]
