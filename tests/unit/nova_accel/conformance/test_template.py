# SPDX-License-Identifier: Apache-2.0
"""Proves that the template is a driver and plans nothing."""

import pathlib

from nova_accel import model
from nova_accel.config import policy
from nova_accel.conformance import template
from nova_accel.discovery import plugin
from nova_accel.host.sysfs import host_reader
from tests.hosts import look


def test_the_template_is_a_driver_that_does_nothing(
    tmp_path: pathlib.Path,
) -> None:
    driver = template.TemplateDriver()
    assert isinstance(driver, plugin.Driver)
    host = host_reader.HostReader(look.make("t4-mdev", tmp_path))
    assert not list(driver.describe(host, policy.DeviceRules(), frozenset()))
    claim = model.Claim(
        consumer="c",
        provider="p",
        device="d",
        profile="x",
        slot="s",
        parent="d",
        handle="h",
        technology="none",
    )
    assert not driver.plan_prepare(claim)
    assert not driver.plan_release(claim)
