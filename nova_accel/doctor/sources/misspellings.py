# SPDX-License-Identifier: Apache-2.0
"""Misspelt options and sections in configuration files."""

import difflib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from nova_accel import model

# Similarity from which on a section's name is a misspelling of the group's:
# [nova-accel] and [nova_acel] are, [nova] and [accel] are not.
_MIN_SIMILARITY = 0.8


def find(
    files: Iterable[tuple[str, Mapping[str, Mapping[str, Sequence[str]]]]],
    group: str,
    options: Collection[str],
) -> Iterator[model.Problem]:
    """Yield a problem for each unknown option of a group of options.

    And for each section whose name is similar to that of the group.

    :param files: each file with its sections, options and values.
    :param options: the names of the group's options.
    """
    for path, sections in files:
        for section, keys in sections.items():
            if section.lower() == group:
                for key in sorted(keys.keys() - {*options}):
                    where = f"{path} [{section}] {key}"
                    nearest = difflib.get_close_matches(
                        key.lower(), options, 1
                    )
                    yield _report(where, "option", nearest)
            elif is_similar(section, group):
                yield _report(f"{path} [{section}]", "section", [f"[{group}]"])


def is_similar(section: str, group: str) -> bool:
    """Return whether a section's name is a misspelling of a group's."""
    return bool(
        difflib.get_close_matches(section.lower(), [group], 1, _MIN_SIMILARITY)
    )


def _report(where: str, noun: str, nearest: Sequence[str]) -> model.Problem:
    hint = f"did you mean {nearest[0]}?" if nearest else "remove it"
    return model.Problem(
        where=where,
        reason=f"is ignored: nova-accel has no such {noun}; {hint}",
    )
