# SPDX-License-Identifier: Apache-2.0
"""Prose and names use the field's words; the list is in ``words.py``."""

import ast

from tests.unit.house import sources, words

PAGES = [
    path
    for path in sources.FILES
    if path.suffix == ".rst"
    or (path.suffix == ".yaml" and "releasenotes" in path.parts)
]


def test_no_page_has_a_word_of_the_list() -> None:
    """``test_house.py`` has the same rule for code."""
    hits = [hit for path in PAGES for hit in words.describe_hits(path)]
    assert PAGES
    assert not hits, "\n".join(["see tests/unit/house/words.py", *hits])


def test_each_kind_of_hit_is_found() -> None:
    verb, pronoun, place = "told", "nobody", "stands"
    source = f'''"""What was {verb}."""
found = 1  # {pronoun} {place} here
def sweep(mine: int) -> None:
    raise ValueError("server %s is {verb} of it")
key = "{verb}"
'''
    nodes = list(ast.walk(ast.parse(source)))
    hits = words.find_in_code(source, nodes)
    assert {word for _, word in hits} == {
        f"docstring: What was {verb}.",
        verb,
        "name found",
        pronoun,
        place,
        "name sweep",
        "name mine",
    }
