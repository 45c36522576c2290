# SPDX-License-Identifier: Apache-2.0
"""Nova's own test cases, made to start AccelLibvirtDriver."""

import importlib
import os
import sys
from pathlib import Path
from typing import Any

import fixtures
import nova.conf
from nova.tests.fixtures import libvirt as fakelibvirt
from nova.tests.functional.libvirt import base

# Before Nova's fixtures forbid the import of the real libvirt.
import virt_hooks.guest.connection  # noqa: F401
from nova_accel.config import conf, config_source
from tests.functional.nova.support import speed
from tests.functional.nova_own import chosen
from tests.functional.sync.support import placement_app

_CONF = nova.conf.CONF
_STOCK = "libvirt.LibvirtDriver"
_ACCEL = "accel.AccelLibvirtDriver"
_MODES = os.environ.get("NOVA_ACCEL_NOVA_OWN", "").split(",")
# Follows the host's name in names of the library's providers.
_MARK = "_accel_"
_fake_list = fakelibvirt.Connection.listAllDomains


class Switched(base.ServersTestBase):
    """Mixin of Nova's test cases: computes run AccelLibvirtDriver."""

    #: Root of the host with accelerator cards; all test cases share it.
    root = Path("/nonexistent")

    def setUp(self) -> None:
        self._state = self.useFixture(fixtures.TempDir()).path
        self.useFixture(speed.SharedStatements())
        placement_app.spare_work()
        super().setUp()
        # Nova's libvirt sends no event when a device is detached.
        self.flags(device_detach_timeout=1, group="libvirt")

    def _clear_attrs(self) -> None:
        # pytest sets the test method on the object and deletes it later;
        # Nova deletes every attribute to save memory.
        method = self.__dict__.get(self._testMethodName)
        super()._clear_attrs()
        if method is not None:
            self.__dict__[self._testMethodName] = method

    def _setup_services(self) -> None:
        # Nova searches its site-packages, but wheels install it here.
        self.flags(
            api_paste_config=f"{sys.prefix}/etc/nova/api-paste.ini",
            group="wsgi",
        )
        super()._setup_services()

    def flags(self, **options: Any) -> None:
        """Set options; replace Nova's driver with AccelLibvirtDriver."""
        if options.get("compute_driver") == _STOCK and not is_stock():
            self._switch_on()
            options["compute_driver"] = _ACCEL
        super().flags(**options)

    def _switch_on(self) -> None:
        finders = set(map(id, sys.meta_path))
        config_source.install_finder()
        for finder in sys.meta_path:
            if id(finder) not in finders:
                self.addCleanup(sys.meta_path.remove, finder)
        for name, fake in (
            ("virt_hooks.guest.connection.libvirt", fakelibvirt),
            (
                "nova.tests.fixtures.libvirt.Connection.listAllDomains",
                _list_domains,
            ),
        ):
            self.useFixture(fixtures.MonkeyPatch(name, fake))
        conf.read_settings(_CONF)
        super().flags(group="nova_accel", root=str(self.root), sync_interval=0)

    def _get_all_rps_in_a_tree(self, in_tree_rp_uuid: str) -> list[Any]:
        """Return Nova's providers: its tests count them."""
        return [
            record
            for record in super()._get_all_rps_in_a_tree(in_tree_rp_uuid)
            if _MARK not in record["name"]
        ]

    def start_service(
        self, name: str, host: str | None = None, **kwargs: Any
    ) -> Any:
        """Start a service; each host has files of its own."""
        if name == "compute" and _CONF.compute_driver == _ACCEL:
            state_dir = f"{self._state}/{host}"
            super().flags(group="nova_accel", state_dir=state_dir)
        return super().start_service(name, host=host, **kwargs)


def _list_domains(connection: Any, flags: int = 0) -> list[Any]:
    """Return the domains; flags of 0 mean all, as in libvirt."""
    if flags == 0:
        return list(connection._vms.values())
    domains: list[Any] = _fake_list(connection, flags)
    return domains


def is_stock() -> bool:
    """Return whether Nova's own driver is started, to compare."""
    return "stock" in _MODES


def cases() -> dict[str, type]:
    """Return Nova's test cases with the mixin, by name."""
    classes: dict[str, type] = {}
    for name, usual in chosen.USUAL.items():
        available = _cases_of(name)
        if "all" not in _MODES:
            available = {label: available[label] for label in usual}
        for label, case in available.items():
            selected = _tests_of(case) if "all" in _MODES else {*usual[label]}
            assert selected <= _tests_of(case), selected
            selected -= _excluded(f"{name}.{label}")
            removed = dict.fromkeys(_tests_of(case) - selected)
            class_name = f"{name}_{label}"
            classes[class_name] = type(
                class_name,
                (Switched, case),
                {"__module__": __name__, **removed},
            )
    return classes


def _excluded(case: str) -> set[str]:
    """Return the tests of a test case that EXCLUDED names."""
    if is_stock():
        return set()
    return {
        name.rpartition(".")[2]
        for name in chosen.EXCLUDED
        if name.rpartition(".")[0] == case
    }


def _cases_of(name: str) -> dict[str, type]:
    """Return the test cases of a module of Nova's that start computes."""
    module = importlib.import_module(f"nova.tests.functional.libvirt.{name}")
    return {
        label: case
        for label, case in vars(module).items()
        if isinstance(case, type)
        and issubclass(case, base.ServersTestBase)
        and case.__module__ == module.__name__
        and _tests_of(case)
    }


def _tests_of(case: type) -> set[str]:
    return {name for name in dir(case) if name.startswith("test_")}
