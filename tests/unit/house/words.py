# SPDX-License-Identifier: Apache-2.0
"""Words that name nothing: in prose, and as names in code.

``python -m tests.unit.house.words PATH...`` prints where they occur. Each
word hides an agent, an object or a term that OpenStack has a name for.
"""

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.unit.house import sources

# Prose of comments, docstrings, messages, help texts and pages.
PROSE = re.compile(
    r"\b("
    + "|".join(
        (
            "told|tells?|telling",
            "nobody|somebody|anybody|everybody|whoever|whomever|whom|ours",
            "mends?|mended|mending",
            "stands?|stood",
            "brings?|brought",
            "settles?|settled",
            "hand(?:s|ed|ing)? out",
            "unm(?:ake|akes|ade|aking)",
            "books?|booked|booking",
            "look(?:s|ed|ing)? (?:at|after|anew|into)",
            "the ones? (?:that|who)",
            r"what\s+others",
            r"own\s+word",
            "speaks? against",
        )
    )
    + r")\b(?!\.json|/)",
    re.IGNORECASE,
)
# The subject of a docstring's first sentence is a noun.
NOUN_CLAUSE = re.compile(r"(What|Who|Whose|Whom|Which|Where|How)\b[^?]*\Z")
# Names of variables, arguments and attributes that name no noun.
EMPTY_NAMES = {
    "found", "told", "given", "wanted", "known", "held", "left", "more",
    "mine", "one", "ours", "others_", "whom", "asked", "said", "shown",
    "kept",
}  # fmt: skip
# Parts of names for which the field has another verb or noun.
NAME_PARTS = {
    "told", "tell", "tells", "bring", "mend", "mends", "mended", "stand",
    "stands", "whom", "ours", "mine", "settle", "settled", "unmake",
    "unmade", "unmaking", "booked", "book", "wares", "sweep", "sweeper",
    "lay", "laid",
}  # fmt: skip
# Names that Nova, Placement, the kernel or a published format chose.
FOREIGN_NAMES = {"book_json"}
# Quotes and foreign names: file, then a text of the line.
ALLOWED: dict[str, tuple[str, ...]] = {
    # Python's file protocol has a method of this name.
    "nova_accel/discovery/capture.py": ("tell",),
    # Keys of the audit's JSON, a stable interface.
    "doc/source/admin/audit.rst": ("``mend``", "``mended``"),
}

Hit = tuple[int, str]
# Nodes that have a docstring, prose, or a name that they define.
KINDS: tuple[type[ast.AST], ...] = (
    *(ast.Module, ast.ClassDef, ast.FunctionDef),
    *(ast.Constant, ast.Name, ast.Attribute, ast.arg),
)


def find_in_text(text: str, first_line: int = 1) -> Iterator[Hit]:
    """Yield the line and the word of each hit in prose."""
    for match in PROSE.finditer(text):
        yield first_line + text.count("\n", 0, match.start()), match[0]


def find_in_code(source: str, nodes: Sequence[ast.AST]) -> Iterator[Hit]:
    """Yield the hits of a Python module: comments, strings, names.

    :param nodes: those of ``KINDS`` in its syntax tree.
    """
    has_prose = PROSE.search(source) is not None
    if has_prose:
        yield from _find_in_comments(source)
    for node in nodes:
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            first = (ast.get_docstring(node) or "").partition("\n")[0]
            if NOUN_CLAUSE.match(first):
                yield getattr(node, "lineno", 1), f"docstring: {first}"
        elif has_prose and isinstance(node, ast.Constant):
            yield from _find_in_constant(node)
        name = _find_defined_name(node)
        if not name or name in FOREIGN_NAMES:
            continue
        parts = set(name.strip("_").split("_"))
        if name.strip("_") in EMPTY_NAMES or parts & NAME_PARTS:
            yield getattr(node, "lineno", 1), f"name {name}"


def _find_in_comments(source: str) -> Iterator[Hit]:
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield from find_in_text(token.string, token.start[0])


def _find_in_constant(node: ast.Constant) -> Iterator[Hit]:
    # One word is a key, a path or a value.
    if isinstance(node.value, str) and len(node.value.split()) > 1:
        yield from find_in_text(node.value, node.lineno)


def _find_defined_name(node: ast.AST) -> str:
    """Return the name that a node defines, "" if it defines none."""
    match node:
        case ast.Name(ctx=ast.Store()):
            return node.id
        case ast.Attribute(ctx=ast.Store()):
            return node.attr
        case ast.arg():
            return node.arg
        case ast.FunctionDef() | ast.ClassDef():
            return node.name
    return ""


def find(path: Path) -> list[Hit]:
    """Return the hits of a file, by line."""
    text = path.read_text()
    if path.suffix == ".py":
        nodes = sources.list_nodes(path, *KINDS)
        return sorted(set(find_in_code(text, nodes)))
    return sorted(set(find_in_text(text)))


def describe_hits(path: Path) -> list[str]:
    """Return the hits of a file of the project that it may not have."""
    name = sources.relative(path)
    lines = path.read_text().splitlines()
    allowed = ALLOWED.get(name, ())
    return [
        f"{name}:{line}: {word}: {lines[line - 1].strip()}"
        for line, word in find(path)
        if not any(quote in lines[line - 1] for quote in allowed)
    ]


def main(arguments: list[str]) -> None:
    """Print the hits below some paths, and their number."""
    count = 0
    for argument in arguments:
        top = Path(argument)
        paths = [top] if top.is_file() else sorted(top.rglob("*"))
        for path in paths:
            if path.suffix in (".py", ".rst", ".yaml"):
                for line, word in find(path):
                    count += 1
                    print(f"{path}:{line}: {word}")
    print(f"{count} hits", file=sys.stderr)


if __name__ == "__main__":
    main(sys.argv[1:])
