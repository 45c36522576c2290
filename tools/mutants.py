# SPDX-License-Identifier: Apache-2.0
"""Mutants of the code that decides who holds a device, and their survivors.

    tox run -e mutants -- --count 150 --seed 1 [--area claims --processes 2]

A mutant is a copy of the tree with one change by cosmic-ray: a comparison, a
condition, a number, a loop that runs no time. The tests of the area run on
it; a mutant on which all pass survives. Mutants are drawn by seed, as many
from each area as its share of places; one place has one mutant. Survivors
are printed as differences. Some say nothing about the tests: the mutant
behaves as the original (a faster way is skipped, a log line changes).
"""

import argparse
import concurrent.futures
import dataclasses
import difflib
import pathlib
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence

from cosmic_ray import ast as cosmic_ast
from cosmic_ray import mutating, plugins

ROOT = pathlib.Path(__file__).parents[1]
# Changes here are seen by no caller that is right.
_SAME = re.compile(r"strict=True|@dataclasses\.dataclass|kw_only=True")
# The slowest area takes 10 s of a processor; a mutant may loop, or wait.
CPU_SECONDS, SECONDS = 120, 1200
_OPERATORS = (
    "core/AddNot",
    "core/NumberReplacer",
    "core/ReplaceAndWithOr",
    "core/ReplaceBinaryOperator_Add_Sub",
    "core/ReplaceBinaryOperator_BitAnd_BitOr",
    "core/ReplaceBinaryOperator_Sub_Add",
    "core/ReplaceBreakWithContinue",
    "core/ReplaceComparisonOperator_Eq_NotEq",
    "core/ReplaceComparisonOperator_Gt_GtE",
    "core/ReplaceComparisonOperator_GtE_Gt",
    "core/ReplaceComparisonOperator_Is_IsNot",
    "core/ReplaceComparisonOperator_IsNot_Is",
    "core/ReplaceComparisonOperator_Lt_LtE",
    "core/ReplaceComparisonOperator_LtE_Lt",
    "core/ReplaceContinueWithBreak",
    "core/ReplaceFalseWithTrue",
    "core/ReplaceOrWithAnd",
    "core/ReplaceTrueWithFalse",
    "core/ReplaceUnaryOperator_Delete_Not",
    "core/ZeroIterationForLoop",
)


@dataclasses.dataclass(frozen=True, slots=True)
class Area:
    """Modules, as patterns of files, and the folders of their tests."""

    modules: tuple[str, ...]
    tests: tuple[str, ...]


AREAS = {
    "claims": Area(
        ("nova_accel/claims/*.py",),
        (
            "tests/unit/nova_accel/claims",
            "tests/unit/virt_hooks/spawn",
        ),
    ),
    "ledger": Area(
        ("virt_hooks/instance/ledger.py",),
        ("tests/unit/virt_hooks/instance", "tests/unit/virt_hooks/report"),
    ),
    "notes": Area(
        ("nova_accel/host/state/*.py",),
        ("tests/unit/nova_accel/host/state", "tests/unit/virt_hooks/spawn"),
    ),
    "tree": Area(
        ("nova_accel/inventory/*.py", "placement_sync/sync/*.py"),
        ("tests/unit/nova_accel/inventory", "tests/unit/placement_sync/sync"),
    ),
}


@dataclasses.dataclass(frozen=True, slots=True)
class Mutant:
    """One change of one module; ``path`` is relative to the tree."""

    area: str
    path: str
    line: int
    source: str
    changed: str

    @property
    def difference(self) -> str:
        """The change as a unified difference without context."""
        lines = difflib.unified_diff(
            self.source.splitlines(),
            self.changed.splitlines(),
            self.path,
            self.path,
            lineterm="",
            n=0,
        )
        return "\n".join(lines)


def list_places(path: pathlib.Path) -> Iterator[tuple[int, str, int]]:
    """Yield line, operator and number of the occurrence of each mutation."""
    nodes = list(cosmic_ast.ast_nodes(cosmic_ast.get_ast_from_path(path)))
    for name in _OPERATORS:
        operator = plugins.get_operator(name)()
        starts = (
            start
            for node in nodes
            for start, _ in operator.mutation_positions(node)
        )
        for number, start in enumerate(starts):
            yield start[0], name, number


def draw_mutants(areas: Sequence[str], count: int, seed: int) -> list[Mutant]:
    """Return up to ``count`` mutants of some areas, at most one of a line."""
    places: dict[tuple[str, str, int], list[tuple[str, int]]] = {}
    for area in areas:
        for pattern in AREAS[area].modules:
            for path in sorted(ROOT.glob(pattern)):
                relative = str(path.relative_to(ROOT))
                lines = path.read_text(encoding="utf-8").splitlines()
                for line, operator, number in list_places(path):
                    if _SAME.search(lines[line - 1]):
                        continue
                    key = (area, relative, line)
                    places.setdefault(key, []).append((operator, number))
    chance = random.Random(seed)  # noqa: S311
    drawn = chance.sample(sorted(places), min(count, len(places)))
    mutants = []
    for area, relative, line in drawn:
        operator, number = chance.choice(places[area, relative, line])
        source = (ROOT / relative).read_text(encoding="utf-8")
        changed = mutating.mutate_code(
            source, plugins.get_operator(operator)(), number
        )
        mutants.append(Mutant(area, relative, line, source, changed))
    return mutants


def passes(folder: pathlib.Path, area: str) -> bool:
    """Return whether all tests of an area pass in a copy of the tree."""
    command = [
        "prlimit",
        f"--cpu={CPU_SECONDS}",
        sys.executable,
        "-B",
        "-m",
        "pytest",
        "-q",
        "-x",
    ]
    command += ["-p", "no:cacheprovider", *AREAS[area].tests]
    try:
        result = subprocess.run(  # noqa: S603
            command,
            check=False,
            cwd=folder,
            capture_output=True,
            timeout=SECONDS,
        )
    except subprocess.TimeoutExpired:
        return False
    return result.returncode == 0


class Copies:
    """Copies of the tree, one for each mutant that is tried at a time.

    :raises RuntimeError: the tests of an area fail without any change.
    """

    def __init__(self, folder: pathlib.Path, count: int) -> None:
        self._free = [folder / str(number) for number in range(count)]
        environments = shutil.ignore_patterns(".*", "__pycache__")
        for copy in self._free:
            shutil.copytree(ROOT, copy, ignore=environments)

    def check(self, areas: Sequence[str]) -> None:
        """Check that the tests of each area pass on the tree as it is."""
        for area in areas:
            if not passes(self._free[0], area):
                raise RuntimeError(f"tests of {area} fail without a mutant")

    def survives(self, mutant: Mutant) -> bool:
        """Return whether all tests pass with a mutant."""
        copy = self._free.pop()
        module = copy / mutant.path
        try:
            module.write_text(mutant.changed, encoding="utf-8")
            return passes(copy, mutant.area)
        finally:
            module.write_text(mutant.source, encoding="utf-8")
            self._free.append(copy)


def parse_arguments() -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=150)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--area", choices=sorted(AREAS), action="append")
    return parser.parse_args()


def main() -> int:
    """Print survivors and the sum of each area; return 0."""
    arguments = parse_arguments()
    areas = arguments.area or sorted(AREAS)
    mutants = draw_mutants(areas, arguments.count, arguments.seed)
    survived = dict.fromkeys(areas, 0)
    with (
        tempfile.TemporaryDirectory() as folder,
        concurrent.futures.ThreadPoolExecutor(arguments.processes) as pool,
    ):
        copies = Copies(pathlib.Path(folder), arguments.processes)
        copies.check(areas)
        results = pool.map(copies.survives, mutants)
        for number, (mutant, survives) in enumerate(
            zip(mutants, results, strict=True), 1
        ):
            if survives:
                survived[mutant.area] += 1
                print(mutant.difference, flush=True)
            if number % 10 == 0:
                print(f"{number} of {len(mutants)} mutants", file=sys.stderr)
    print(f"{'area':10}{'mutants':>9}{'survivors':>11}")
    for area in areas:
        total = sum(mutant.area == area for mutant in mutants)
        print(f"{area:10}{total:9}{survived[area]:11}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
