# SPDX-License-Identifier: Apache-2.0
"""Files of the project, and their syntax trees.

A syntax tree is kept until the next file is parsed: the trees of all files are
a million objects, and the garbage collector takes longer to walk them than
Python to parse the files again.
"""

import ast
import collections
import functools
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

ROOT = Path(__file__).resolve().parents[3]
PACKAGES = ("nova_accel", "placement_sync", "filters", "virt_hooks")
SOURCE_SUFFIXES = {
    ".S", ".asm", ".c", ".cfg", ".h", ".ini", ".ld", ".py", ".s", ".sh",
    ".toml",
}  # fmt: skip
GENERATED = {"build", "dist", "__pycache__", "node_modules"}
Node = TypeVar("Node", bound=ast.AST)


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


def list_nodes(path: Path, *kinds: type[Node]) -> Sequence[Node]:
    """Return the nodes of some kinds in a module's syntax tree."""
    groups = _group_nodes(path)
    return [node for kind in kinds for node in groups.get(kind, ())]


@functools.lru_cache(maxsize=1)
def _group_nodes(path: Path) -> Mapping[type[ast.AST], list[Any]]:
    """Return the nodes of a module's syntax tree by kind.

    Each rule is about few kinds. Going through all nodes for each rule took
    longer than everything else that the rules do.
    """
    groups: dict[type[ast.AST], list[Any]] = collections.defaultdict(list)
    nodes: list[ast.AST] = [tree(path)]
    for node in nodes:
        groups[type(node)].append(node)
        for name in node._fields:
            value = getattr(node, name)
            if isinstance(value, list):
                nodes += (item for item in value if isinstance(item, ast.AST))
            elif isinstance(value, ast.AST):
                nodes.append(value)
    return groups


FILES = list(walk(ROOT))
SOURCES = [path for path in FILES if is_source(path)]
PYTHON = [path for path in SOURCES if path.suffix == ".py"]
MODULES = [
    path for path in PYTHON if relative(path).partition("/")[0] in PACKAGES
]
