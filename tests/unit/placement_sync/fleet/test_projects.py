# SPDX-License-Identifier: Apache-2.0
"""A project is named by its id, or by a name that is its alone."""

import pytest

from nova_accel.cli import command_manager
from placement_sync.fleet import projects

NAMES = {"1a": "web", "2b": "web", "3c": "batch", "4d": "3c", "5e": ""}


@pytest.mark.parametrize(
    ("text", "project"),
    [("1a", "1a"), ("batch", "3c"), ("bat", ""), ("Batch", ""), ("6f", "")],
)
def test_ids_and_names_are_exact(text: str, project: str) -> None:
    assert projects.select(text, NAMES) == project


def test_a_project_named_like_the_id_of_another_is_not_it() -> None:
    assert projects.select("3c", NAMES) == "3c"


def test_a_name_of_several_projects_is_ambiguous() -> None:
    with pytest.raises(command_manager.UsageError, match="one: 1a, 2b"):
        projects.select("web", NAMES)
