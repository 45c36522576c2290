# SPDX-License-Identifier: Apache-2.0
"""nova-compute in a child process that can be killed.

The child is a copy of the test's own nova-compute. As a real one it asks
a conductor for Nova's database, Placement by its API, and libvirt by its
connection; and all of these are those of the test.
"""

from collections.abc import Callable
from typing import Any

from nova import context as nova_context
from nova.conductor import manager
from nova.objects import base as nova_objects
from nova.scheduler.client import report
from nova.tests.fixtures import libvirt as fakelibvirt

from tests.functional.nova.support import libvirtd
from tests.support.hosts import mortal

_SERIALIZER = nova_objects.NovaObjectSerializer()
_WRITING = ("create", "save", "destroy")
_ASKED = ("get", "put", "post", "delete")
_SHOWN = ("XMLDesc", "isActive", "info")


class World(mortal.World):
    """Nova's database, Placement, and libvirt's domains with their guests."""

    def __init__(self, compute: Any) -> None:
        super().__init__()
        self.compute = compute
        self._conductor = manager.ConductorManager()

    @property
    def _domains(self) -> dict[str, Any]:
        found: dict[str, Any] = self.compute.driver._host.get_connection()._vms
        return found

    def leave(self) -> None:
        """Let go of what the guests hold: it is not nova-compute's."""
        for domain in self._domains.values():
            domain.close_groups()

    def kill(self, work: Callable[[Any], None]) -> int:
        """Let nova-compute's driver work; return the signal it died of."""

        def live(link: mortal.Link) -> None:
            driver = self.compute.driver
            _reach_out(link)
            link.report_steps(driver._accel)
            work(driver)
            link.step("return")

        return self.run(live)

    # -- what nova-compute asks --------------------------------------------

    def do_conductor(
        self, method: str, words: dict[str, Any], given: Any
    ) -> Any:
        context = nova_context.RequestContext.from_dict(words)
        known = _SERIALIZER.deserialize_entity(context, given)
        found = getattr(self._conductor, method)(context, **known)
        return _SERIALIZER.serialize_entity(context, found)

    def do_placement(
        self, method: str, given: tuple[Any, ...], words: dict[str, Any]
    ) -> Any:
        client = self.compute.manager.reportclient
        return getattr(client, method)(*given, **words)

    def do_libvirt(
        self, name: str, method: str, given: Any, words: dict[str, Any]
    ) -> Any:
        return getattr(self._domains[name], method)(*given, **words)


class _Conductor:
    """Nova's database, as nova-compute's objects ask for it."""

    def __init__(self, link: mortal.Link) -> None:
        self._link = link

    def object_class_action_versions(
        self,
        context: Any,
        objname: str,
        objmethod: str,
        object_versions: Any,
        args: Any,
        kwargs: Any,
    ) -> Any:
        return self._ask(
            "object_class_action_versions",
            context,
            objname=objname,
            objmethod=objmethod,
            object_versions=object_versions,
            args=args,
            kwargs=kwargs,
        )

    def object_action(
        self,
        context: Any,
        objinst: Any,
        objmethod: str,
        args: Any,
        kwargs: Any,
    ) -> Any:
        if objmethod in _WRITING:
            self._link.step(_name_of_change(objinst, objmethod))
        return self._ask(
            "object_action",
            context,
            objinst=objinst,
            objmethod=objmethod,
            args=args,
            kwargs=kwargs,
        )

    def _ask(self, method: str, context: Any, **words: Any) -> Any:
        given = _SERIALIZER.serialize_entity(context, words)
        found = self._link.ask("conductor", method, context.to_dict(), given)
        return _SERIALIZER.deserialize_entity(context, found)


def _reach_out(link: mortal.Link) -> None:
    """Let this process be nova-compute only: all else is asked for."""
    nova_objects.NovaObject.indirection_api = _Conductor(link)
    for method in _ASKED:
        setattr(report.SchedulerReportClient, method, _asked(link, method))
    for method in _SHOWN:
        setattr(libvirtd.Domain, method, _shown(link, method))
    for method, verb in (
        ("attachDeviceFlags", "attach to"),
        ("detachDeviceFlags", "detach from"),
    ):
        setattr(libvirtd.Domain, method, _changed(link, method, verb))


def _asked(link: mortal.Link, method: str) -> Callable[..., Any]:
    def call(_: Any, url: str, *given: Any, **words: Any) -> Any:
        if method != "get":
            link.step(f"{method} Placement's {url.split('/')[1]}")
        return link.ask("placement", method, (url, *given), words)

    return call


def _shown(link: mortal.Link, method: str) -> Callable[..., Any]:
    def call(domain: Any, *given: Any, **words: Any) -> Any:
        return link.ask("libvirt", domain.name(), method, given, words)

    return call


def _changed(link: mortal.Link, method: str, verb: str) -> Callable[..., Any]:
    ask = _shown(link, method)

    def call(domain: Any, xml: str, flags: int) -> Any:
        is_kept = flags & fakelibvirt.VIR_DOMAIN_AFFECT_CONFIG
        link.step(f"{verb} the {'definition' if is_kept else 'guest'}")
        return ask(domain, xml, flags=flags)

    return call


def _name_of_change(changed: Any, method: str) -> str:
    """Return what Nova's database is about to be told, in words."""
    what = ", ".join(sorted(changed.obj_what_changed()))
    return f"{method} {changed.obj_name()}: {what}"
