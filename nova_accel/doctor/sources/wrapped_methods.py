# SPDX-License-Identifier: Apache-2.0
"""Methods of nova-scheduler that AcceleratorFilter wraps.

Nova's source is parsed: an import of Nova would read its configuration.
"""

import ast
import dataclasses
import importlib.util
from collections.abc import Mapping
from pathlib import Path


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class WrappedMethod:
    """A method, and the parameters with which it can be wrapped.

    With ``is_whole`` it may have no others.
    """

    file: str
    name: str
    parameters: tuple[str, ...]
    is_whole: bool = False

    def compare(self, path: Path) -> str:
        """Return how a file's method differs, empty if it does not."""
        try:
            tree = ast.parse(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, SyntaxError) as error:
            return f"{path} can't be read: {error}"
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef) and node.name == self.name:
                present = tuple(each.arg for each in node.args.args)
                if present == self.parameters or (
                    not self.is_whole and {*self.parameters} <= {*present}
                ):
                    return ""
                return f"{self.name} of {path} takes ({', '.join(present)})"
        return f"{path} has no {self.name}"


#: By the name of the doctor's check; as ``filters.candidate_capture`` and
#: ``filters.profile_order`` need them.
METHODS = {
    "capture": WrappedMethod(
        file="scheduler/client/report.py",
        name="get_allocation_candidates",
        parameters=("self", "context", "resources"),
        is_whole=True,
    ),
    "choices": WrappedMethod(
        file="scheduler/manager.py",
        name="select_destinations",
        parameters=("self", "context", "spec_obj"),
    ),
}


def find_differences() -> Mapping[str, str]:
    """Return why methods can't be wrapped, by the doctor's checks.

    Those that can be are not in it; it is empty without Nova in this Python.
    """
    nova = importlib.util.find_spec("nova")
    directories = nova.submodule_search_locations if nova else None
    if not directories:
        return {}
    root = Path(next(iter(directories)))
    differences = {
        check: method.compare(root / method.file)
        for check, method in METHODS.items()
    }
    return {check: text for check, text in differences.items() if text}
