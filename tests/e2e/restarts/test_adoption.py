# SPDX-License-Identifier: Apache-2.0
"""Servers of Nova's own vGPUs are adopted, used, and handed back.

The commands are those of the manual, run as it has them; libvirt, mdevctl
and the kernel are real.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest

from tests.e2e.restarts.stock_host import SPEC, GuestWatch, StockHost
from tests.e2e.support import agreement
from tests.e2e.support.live_guest import upload_image
from tests.e2e.support.second_host import MTTY_2, retry_comparison
from tests.e2e.support.site import Site
from tests.lab.cloud.processes import LabError

pytestmark = [pytest.mark.lab, pytest.mark.long]

#: Actions on each kind of server before, each with the state afterwards.
_KINDS: Mapping[str, tuple[tuple[str, str], ...]] = {
    "shelved": (("shelve", "SHELVED"),),
    "rescued": (("rescue", "RESCUE"),),
    "resized": (("resize", "VERIFY_RESIZE"),),
    "double": (),
    "plain": (),
}
#: Those whose guests count; the others run none, or are off.
_COUNTING = ("double", "plain")
#: What makes each one active again.
_INVERSES = {
    "resized": "os-start",
    "shelved": "unshelve",
    "rescued": "unrescue",
}
_MDEVS = " ".join([MTTY_2] * 5)
_TRAIT = "CUSTOM_MDEV_MTTY_2"


@pytest.fixture(scope="module")
def stock(lab: Site) -> Iterator[StockHost]:
    """Return the second host, under Nova's own driver."""
    lab.clean()
    host = StockHost(lab)
    with host.started():
        yield host


@pytest.fixture(scope="module")
def servers(stock: StockHost) -> Mapping[str, Any]:
    """Return a server of each kind, at rest as far as a plan asks for it."""
    lab, servers = stock.lab, _boot_all(stock)
    with pytest.raises(LabError, match="moving-server") as blocked:
        stock.plan()
    for action, state in (("confirmResize", "ACTIVE"), ("os-stop", "SHUTOFF")):
        lab.act(servers["resized"], action)
        lab.reach(servers["resized"], state)
    # Nova may have left the mdev of the former size behind.
    for remedy in re.findall("by hand: (mdevctl .*)", str(blocked.value)):
        stock.host.run(remedy)
    stock.await_report()
    return servers


def test_a_host_is_adopted_and_handed_back(
    stock: StockHost, servers: Mapping[str, Any]
) -> None:
    before = stock.record([*servers.values()])
    watch = GuestWatch(stock, [servers["double"], servers["plain"]])
    with watch.watching():
        stock.plan()
        stock.adopt()
    adopted = stock.record([*servers.values()])
    for name in ("kernel", "domains"):
        assert adopted[name] == before[name], name
    assert " auto" in before["definitions"]
    # The next pass does it.
    retry_comparison(lambda: _assert_no_autostart(stock))
    stock.two.check("adopted", second=_MDEVS)

    specs = {"resources_A:CUSTOM_MDEV": "1", f"trait_A:{_TRAIT}": "required"}
    flavor = stock.lab.flavor_of(64, "e2e-since", specs)
    created = stock.lab.boot("e2e-since", flavor, host=stock.host.name)
    stock.hand_back()
    stock.lab.hard_reboot(created)
    assert list(stock.host.mdevs().values()) == [MTTY_2] * 6
    stock.lab.delete(created)
    stock.lab.wait_gone(created)
    for mdev in set(stock.host.mdevs()) - set(before["kernel"]):
        # Nova's own driver leaves the mdev of a deleted server.
        stock.host.run(f"mdevctl undefine --uuid {mdev}")
        stock.host.run(f"mdevctl stop --uuid {mdev}")
    retry_comparison(lambda: _compare(before, stock, [*servers.values()]))


def test_adopted_servers_are_rebooted_moved_and_deleted(
    stock: StockHost, servers: Mapping[str, Any]
) -> None:
    stock.lab.restart_compute("adoption", f"device_spec = {SPEC}")
    stock.adopt()
    _live(stock, servers)
    stock.two.check("deleted")
    _assert_no_autostart(stock)


def _assert_no_autostart(stock: StockHost) -> None:
    assert " auto" not in stock.host.run("mdevctl list -d")


def _compare(
    before: Mapping[str, Any], stock: StockHost, servers: Sequence[Any]
) -> None:
    after = stock.record(servers)
    for name, record in before.items():
        assert after[name] == record, name


def _boot_all(stock: StockHost) -> dict[str, Any]:
    lab, image = stock.lab, upload_image(stock.two)
    flavors = {
        name: lab.flavor_of(ram, f"e2e-{name}", specs)
        for name, ram, specs in (
            ("native", 64, {"resources:VGPU": "1"}),
            ("larger", 65, {"resources:VGPU": "1"}),
            ("double", 64, {"resources:VGPU": "2"}),
            ("plain", 64, {}),
        )
    }
    larger = {"flavorRef": flavors["larger"].id}
    servers = {}
    # One after the other: Nova gives the same mdev to two at once.
    for kind, actions in _KINDS.items():
        servers[kind] = lab.boot(
            f"e2e-{kind}",
            flavors.get(kind, flavors["native"]),
            host=stock.host.name,
            **({"image_id": image} if kind in _COUNTING else {}),
        )
        for action, state in actions:
            arguments = larger if action == "resize" else {}
            lab.act(servers[kind], action, **arguments)
            lab.reach(servers[kind], state)
    return servers


def _live(stock: StockHost, servers: Mapping[str, Any]) -> None:
    """Start and reboot all adopted servers, move one, delete all."""
    lab, two = stock.lab, stock.two
    for kind, action in _INVERSES.items():
        lab.act(servers[kind], action)
        lab.reach(servers[kind], "ACTIVE")
    mdevs = agreement.domains(two.second)
    for server in servers.values():
        lab.act(server, "reboot", type="HARD")
    for server in servers.values():
        lab.reach(server, "ACTIVE")
    assert agreement.domains(two.second) == mdevs
    # The first host has not room for all of them.
    moved = servers["resized"]
    lab.act(moved, "migrate", host=two.first.name)
    lab.reach(moved, "VERIFY_RESIZE")
    lab.act(moved, "confirmResize")
    lab.reach(moved, "ACTIVE")
    two.check("moved", first=MTTY_2, second=_MDEVS.removeprefix(MTTY_2))
    lab.clean()
