# SPDX-License-Identifier: Apache-2.0
"""Method of nova-scheduler that AcceleratorFilter wraps.

Nova's source is parsed: an import of Nova would read its configuration.
"""

import ast
import importlib.util
from pathlib import Path

#: As ``filters.candidate_capture`` needs them.
PARAMETERS = ("self", "context", "resources")
_FILE = "scheduler/client/report.py"
_METHOD = "get_allocation_candidates"


def find_difference() -> str:
    """Return why Nova's answers are not captured, empty if they are.

    Empty without Nova in this Python, too.
    """
    nova = importlib.util.find_spec("nova")
    directories = nova.submodule_search_locations if nova else None
    if not directories:
        return ""
    return compare(Path(next(iter(directories)), _FILE))


def compare(path: Path) -> str:
    """Return how a file's method differs, empty if it does not."""
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, SyntaxError) as error:
        return f"{path} can't be read: {error}"
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name == _METHOD:
            parameters = tuple(each.arg for each in node.args.args)
            if parameters == PARAMETERS:
                return ""
            return f"{_METHOD} of {path} takes ({', '.join(parameters)})"
    return f"{path} has no {_METHOD}"
