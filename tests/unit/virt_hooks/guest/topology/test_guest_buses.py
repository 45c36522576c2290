# SPDX-License-Identifier: Apache-2.0
"""Bus numbers of a guest are predicted from its XML."""

import re

import pytest

from virt_hooks.guest.topology import guest_buses, picture


def domain(*controllers: str) -> str:
    root = '<controller type="pci" index="0" model="pcie-root"/>'
    return f"<domain><devices>{root}{''.join(controllers)}</devices></domain>"


def port(
    index: int, bus: int = 0, slot: int = 1, function: int = 0, model: str = ""
) -> str:
    return (
        f'<controller type="pci" index="{index}"'
        f' model="{model or "pcie-root-port"}"><address type="pci"'
        f' bus="{bus}" slot="{slot:#x}" function="{function}"/></controller>'
    )


def expander(index: int, number: int | None) -> str:
    target = "" if number is None else f'<target busNr="{number}"/>'
    return (
        f'<controller type="pci" index="{index}" model="pcie-expander-bus">'
        f'{target}<address type="pci" bus="0" slot="0x9" function="0"/>'
        "</controller>"
    )


def test_buses_are_numbered_depth_first_by_slot_and_function() -> None:
    text = domain(
        port(1, slot=2),
        port(2, slot=1, function=1),
        port(3, slot=1),
        expander(4, 0x40),
        port(5, bus=4, slot=1),
        port(6, bus=4, slot=0),
        port(7, bus=6, slot=0, model="pcie-switch-upstream-port"),
        port(8, bus=7, slot=0, model="pcie-switch-downstream-port"),
    )
    assert guest_buses.predict(text) == {
        0: 0, 3: 1, 2: 2, 1: 3, 4: 0x40, 6: 0x41, 7: 0x42, 8: 0x43, 5: 0x44,
    }  # fmt: skip


def test_another_number_than_the_index_is_refused() -> None:
    text = domain(port(1, slot=2), port(2, slot=1))
    with pytest.raises(picture.PictureError, match="controller 1 gets bus 2"):
        guest_buses.check(text)


def test_overlapping_ranges_are_refused() -> None:
    text = domain(expander(1, 8), port(2, bus=1), expander(3, 9))
    with pytest.raises(picture.PictureError, match=r"busNr 9 .*3 .* end at 9"):
        guest_buses.predict(text)


def test_a_range_behind_the_last_bus_is_refused() -> None:
    """libvirt's own choice for two expanders: 254 and 252."""
    text = domain(expander(1, 254), port(2, bus=1), port(3, bus=1, slot=2))
    with pytest.raises(picture.PictureError, match="last bus would be 256"):
        guest_buses.predict(text)


def test_an_omitted_number_is_refused() -> None:
    with pytest.raises(picture.PictureError, match="expander 1 has no busNr"):
        guest_buses.predict(domain(expander(1, None)))


def test_a_domain_that_is_not_defined_is_refused() -> None:
    bare = '<controller type="pci" index="1" model="pcie-root-port"/>'
    with pytest.raises(picture.PictureError, match="1 has no address yet"):
        guest_buses.predict(domain(bare))


def test_a_controller_below_none_is_refused() -> None:
    with pytest.raises(picture.PictureError, match="controllers 2 are below"):
        guest_buses.predict(domain(port(2, bus=7)))


def test_an_expander_is_recognized() -> None:
    assert picture.parse(domain(expander(1, 1))).list_expanders()
    assert not picture.parse(domain(port(1))).list_expanders()


def test_buses_are_renumbered() -> None:
    """libvirt has added port 4 to bus 0, for the device on it."""
    device = (
        '<disk><address type="pci" domain="0" bus="{}" slot="0"/></disk>'
        '<disk><address type="drive" bus="4"/></disk>'
    )
    before = domain(
        port(1, slot=1),
        expander(2, 2),
        port(3, bus=2, slot=0),
        port(4, slot=1, function=1),
        device.format(4) + device.format(3),
    )
    with pytest.raises(picture.PictureError, match=r"busNr 2 .*end at 2"):
        guest_buses.check(before)
    after = guest_buses.renumber(before)
    guest_buses.check(after)
    expected = domain(
        port(1, slot=1),
        expander(3, 3),
        port(4, bus=3, slot=0),
        port(2, slot=1, function=1),
        device.format(2) + device.format(4),
    )
    assert canonical(after) == canonical(expected)
    assert canonical(guest_buses.renumber(after)) == canonical(after)


def canonical(text: str) -> str:
    """Return XML with equal spellings of equal numbers."""
    return re.sub(r'"0x([0-9a-f]+)"', lambda m: f'"{int(m[1], 16)}"', text)


def test_too_many_buses_are_not_renumbered() -> None:
    ports = [port(n, slot=n // 8, function=n % 8) for n in range(1, 256)]
    with pytest.raises(picture.PictureError, match="257 buses"):
        guest_buses.renumber(domain(*ports, expander(256, 255)))
