# SPDX-License-Identifier: Apache-2.0
"""Prose and names use the field's words; the list is in ``words.py``."""

from collections.abc import Iterator
from pathlib import Path

from tests.unit.house import test_house, words

# Quotes and foreign names: file, then a text of the line.
# Python's file protocol has a method of this name.
ALLOWED: dict[str, tuple[str, ...]] = {
    "nova_accel/discovery/capture.py": ("tell",),
    # Keys of the audit's JSON, a stable interface.
    "doc/source/admin/audit.rst": ("``mend``", "``mended``"),
}


def pages() -> Iterator[Path]:
    for path in test_house.walk(test_house.ROOT):
        if path.suffix == ".rst":
            yield path
        elif path.suffix == ".yaml" and "releasenotes" in path.parts:
            yield path


def test_no_word_of_the_list_is_used() -> None:
    hits = []
    for path in (*test_house.PYTHON, *pages()):
        name = test_house.relative(path)
        lines = path.read_text().splitlines()
        hits += [
            f"{name}:{line}: {word}: {lines[line - 1].strip()}"
            for line, word in words.find(path)
            if not any(
                quote in lines[line - 1] for quote in ALLOWED.get(name, ())
            )
        ]
    assert not hits, "\n".join(["see tests/unit/house/words.py", *hits])


def test_each_kind_of_hit_is_found() -> None:
    verb, pronoun, place = "told", "nobody", "stands"
    source = f'''"""What was {verb}."""
found = 1  # {pronoun} {place} here
def sweep(mine: int) -> None:
    raise ValueError("server %s is {verb} of it")
key = "{verb}"
'''
    assert {word for _, word in words.find_in_code(source)} == {
        f"docstring: What was {verb}.",
        verb,
        "name found",
        pronoun,
        place,
        "name sweep",
        "name mine",
    }
