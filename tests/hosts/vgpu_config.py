# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's table of vGPU types, in the form its host driver ships it."""

from collections.abc import Iterable, Mapping

MIB = 1024 * 1024


def text(
    names: Mapping[str, str],
    sizes: Mapping[str, int] | None = None,
    cards: Iterable[tuple[str, str, Mapping[str, int]]] = (),
) -> str:
    """Return a table.

    :param names: full names of the types, by number.
    :param sizes: their framebuffer in MiB, all of it.
    :param cards: device id and subsystem id (four digits, or 0 for any)
        of cards, and how many of each type they take.
    """
    sizes = sizes or {}
    lines = [
        '<?xml version="1.0" encoding="utf-8"?>',
        "<vgpuconfig>",
        "  <version>1.0</version>",
    ]
    for number, name in names.items():
        lines.append(
            f'  <vgpuType id="{number}" name="{name}" class="Quadro">'
        )
        if number in sizes:
            whole = sizes[number] * MIB
            lines += [
                f"    <profileSize>{whole:#x}</profileSize>",
                f"    <framebuffer>0x{whole - whole // 16:X}</framebuffer>",
            ]
        lines.append("  </vgpuType>")
    for product, subsystem, limits in cards:
        lines += [
            "  <pgpu>",
            f'    <devId vendorId="0x10de" deviceId="0x{product.upper()}"'
            f' subsystemVendorId="0x10de" subsystemId="0x{subsystem}"/>',
        ]
        for number, most in limits.items():
            lines += [
                f'    <supportedVgpu vgpuId="{number}">',
                f"      <maxVgpus>{most}</maxVgpus>",
                '      <digest type="signature">00ff</digest>',
                "    </supportedVgpu>",
            ]
        lines.append("  </pgpu>")
    return "\n".join([*lines, "</vgpuconfig>", ""])
