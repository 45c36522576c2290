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
_DATABASE_CHANGES = ("create", "save", "destroy")
_PLACEMENT_METHODS = ("get", "put", "post", "delete")
_DOMAIN_METHODS = ("XMLDesc", "isActive", "info")


class World(mortal.World):
    """Nova's database, Placement, and libvirt's domains with their guests."""

    def __init__(self, compute: Any) -> None:
        super().__init__()
        self.compute = compute
        self._conductor = manager.ConductorManager()

    @property
    def _domains(self) -> dict[str, Any]:
        domains: dict[str, Any] = (
            self.compute.driver._host.get_connection()._vms
        )
        return domains

    def leave(self) -> None:
        """Close the guests' VFIO groups: they are not nova-compute's."""
        for domain in self._domains.values():
            domain.close_groups()

    def kill(self, work: Callable[[Any], None]) -> int:
        """Let nova-compute's driver work; return the signal it died of."""

        def live(link: mortal.Link) -> None:
            driver = self.compute.driver
            _forward_calls(link)
            link.report_steps(driver._accel)
            work(driver)
            link.step("return")

        return self.run(live)

    # -- calls from nova-compute -------------------------------------------

    def do_conductor(
        self, method: str, context_fields: dict[str, Any], serialized: Any
    ) -> Any:
        context = nova_context.RequestContext.from_dict(context_fields)
        arguments = _SERIALIZER.deserialize_entity(context, serialized)
        result = getattr(self._conductor, method)(context, **arguments)
        return _SERIALIZER.serialize_entity(context, result)

    def do_placement(
        self, method: str, arguments: tuple[Any, ...], words: dict[str, Any]
    ) -> Any:
        client = self.compute.manager.reportclient
        return getattr(client, method)(*arguments, **words)

    def do_libvirt(
        self, name: str, method: str, arguments: Any, words: dict[str, Any]
    ) -> Any:
        return getattr(self._domains[name], method)(*arguments, **words)


class _Conductor:
    """Nova's database, as the objects of nova-compute call it."""

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
        if objmethod in _DATABASE_CHANGES:
            self._link.step(_describe_change(objinst, objmethod))
        return self._ask(
            "object_action",
            context,
            objinst=objinst,
            objmethod=objmethod,
            args=args,
            kwargs=kwargs,
        )

    def _ask(self, method: str, context: Any, **words: Any) -> Any:
        serialized = _SERIALIZER.serialize_entity(context, words)
        result = self._link.ask(
            "conductor", method, context.to_dict(), serialized
        )
        return _SERIALIZER.deserialize_entity(context, result)


def _forward_calls(link: mortal.Link) -> None:
    """Forward the calls to all other services to the parent process."""
    nova_objects.NovaObject.indirection_api = _Conductor(link)
    for method in _PLACEMENT_METHODS:
        setattr(
            report.SchedulerReportClient,
            method,
            _forward_to_placement(link, method),
        )
    for method in _DOMAIN_METHODS:
        setattr(libvirtd.Domain, method, _forward_to_libvirt(link, method))
    for method, verb in (
        ("attachDeviceFlags", "attach to"),
        ("detachDeviceFlags", "detach from"),
    ):
        setattr(libvirtd.Domain, method, _forward_change(link, method, verb))


def _forward_to_placement(
    link: mortal.Link, method: str
) -> Callable[..., Any]:
    def call(_: Any, url: str, *arguments: Any, **words: Any) -> Any:
        if method != "get":
            link.step(f"{method} Placement's {url.split('/')[1]}")
        return link.ask("placement", method, (url, *arguments), words)

    return call


def _forward_to_libvirt(link: mortal.Link, method: str) -> Callable[..., Any]:
    def call(domain: Any, *arguments: Any, **words: Any) -> Any:
        return link.ask("libvirt", domain.name(), method, arguments, words)

    return call


def _forward_change(
    link: mortal.Link, method: str, verb: str
) -> Callable[..., Any]:
    ask = _forward_to_libvirt(link, method)

    def call(domain: Any, xml: str, flags: int) -> Any:
        is_definition = flags & fakelibvirt.VIR_DOMAIN_AFFECT_CONFIG
        link.step(f"{verb} the {'definition' if is_definition else 'guest'}")
        return ask(domain, xml, flags=flags)

    return call


def _describe_change(changed: Any, method: str) -> str:
    """Return a description of a change of Nova's database."""
    what = ", ".join(sorted(changed.obj_what_changed()))
    return f"{method} {changed.obj_name()}: {what}"
