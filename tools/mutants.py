# SPDX-License-Identifier: Apache-2.0
"""Mutants of the code that decides who holds a device, and their survivors.

    tox run -e mutants -- --count 150 --seed 1 [--area claims]

A mutant is one change by cosmic-ray: a comparison, a condition, a number, a
loop that runs no time. The tests of the area that run its line are run on it
until one fails (trials.py); a mutant on which all pass survives. Mutants are
drawn by seed, as many from each area as its share of places; one place has
one mutant. Survivors are printed as differences. Some say nothing about the
tests: the mutant behaves as the original (a faster way is skipped, a log line
changes).
"""

import argparse
import contextlib
import dataclasses
import difflib
import multiprocessing
import os
import pathlib
import random
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent import futures

import pytest
from cosmic_ray import ast as cosmic_ast
from cosmic_ray import mutating, plugins

from tools import trials

_FORK = multiprocessing.get_context("fork")
ROOT = pathlib.Path(__file__).parents[1]
# Changes here are seen by no caller that is right.
_SAME = re.compile(r"strict=True|@dataclasses\.dataclass|kw_only=True")
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
        (
            "tests/unit/nova_accel/inventory",
            "tests/unit/nova_accel/discovery/hosts/test_printed_remedies.py",
            "tests/unit/placement_sync/sync",
            "tests/unit/virt_hooks/ironic/test_node_traits.py",
            "tests/functional/sync/passes/test_pass.py",
        ),
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
        with contextlib.suppress(SyntaxError):  # of "not" before a walrus
            compile(changed, relative, "exec")
            mutants.append(Mutant(area, relative, line, source, changed))
    return mutants


def try_area(area: str, mutants: Sequence[Mutant]) -> int:
    """Print survivors of an area; return their number.

    :raises RuntimeError: tests of the area fail without any change.
    """
    survivors = 0

    def work(runs: trials.Trials) -> None:
        nonlocal survivors
        runs.measure(sorted({mutant.path for mutant in mutants}))
        for number, mutant in enumerate(mutants, 1):
            result = runs.judge(
                mutant.path, mutant.line, mutant.source, mutant.changed
            )
            if not result.is_killed:
                survivors += 1
                print(mutant.difference, flush=True)
            print(
                f"{area} {number} of {len(mutants)}: {mutant.path}:"
                f"{mutant.line} {'killed' if result.is_killed else 'survived'}"
                f", {result.tests} tests, {result.seconds:.1f} s",
                file=sys.stderr,
                flush=True,
            )

    plugin = trials.Trials(pathlib.Path.cwd(), work)
    options = ["-q", "-p", "no:cacheprovider", "--basetemp=.tests"]
    code = pytest.main([*options, *AREAS[area].tests], [plugin])
    if code:
        raise RuntimeError(f"pytest ends with {code}: tests of {area}")
    return survivors


def parse_arguments() -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=150)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--area", choices=sorted(AREAS), action="append")
    return parser.parse_args()


def main() -> int:
    """Print survivors and the sum of each area; return 0."""
    arguments = parse_arguments()
    areas = arguments.area or sorted(AREAS)
    mutants = draw_mutants(areas, arguments.count, arguments.seed)
    survived = dict.fromkeys(areas, 0)
    with tempfile.TemporaryDirectory() as folder:
        # Processes that tests start import the mutant, too.
        copy = pathlib.Path(folder, "copy")
        ignored = shutil.ignore_patterns(".*", "__pycache__")
        shutil.copytree(ROOT, copy, ignore=ignored)
        os.chdir(copy)
        sys.path.insert(0, str(copy))
        os.environ["PYTHONPATH"] = str(copy)
        sys.dont_write_bytecode = True
        for area in areas:
            own = [mutant for mutant in mutants if mutant.area == area]
            if own:
                with futures.ProcessPoolExecutor(1, _FORK) as pool:
                    survived[area] = pool.submit(try_area, area, own).result()
        os.chdir(ROOT)
    print(f"{'area':10}{'mutants':>9}{'survivors':>11}")
    for area in areas:
        total = sum(mutant.area == area for mutant in mutants)
        print(f"{area:10}{total:9}{survived[area]:11}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
