# SPDX-License-Identifier: Apache-2.0
"""The file of a plan, and files of other releases."""

import json
import pathlib

import pytest

from nova_accel import errors
from nova_accel.host.state import adoption_plan
from nova_accel.inventory.adoption import planning
from tests.unit.nova_accel.inventory.adoption import test_planner


def test_a_plan_is_read_as_it_was_written(tmp_path: pathlib.Path) -> None:
    plan = planning.build(test_planner.observed(domains=()))
    file = adoption_plan.PlanFile(str(tmp_path / "accel"))
    assert file.read() is None
    file.write(plan)
    assert file.read() == plan


def test_a_plan_of_another_format_is_refused(tmp_path: pathlib.Path) -> None:
    file = adoption_plan.PlanFile(str(tmp_path))
    file.write(planning.build(test_planner.observed()))
    path = pathlib.Path(file.path)
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format": 2}))
    with pytest.raises(errors.ConfigurationError, match="reads 1"):
        file.read()


def test_a_directory_that_can_not_be_written_is_named(
    tmp_path: pathlib.Path,
) -> None:
    (tmp_path / "file").touch()
    file = adoption_plan.PlanFile(str(tmp_path / "file"))
    with pytest.raises(errors.ConfigurationError, match="can't be written"):
        file.write(planning.build(test_planner.observed()))
