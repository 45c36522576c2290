#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Pictures of what guests see of three hosts, for the manual.

``python -m tools.draw_guests`` writes them with the code that builds the
guests of a host; a test checks that they are up to date.
"""

import dataclasses
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from xml.sax import saxutils

from tools import circles
from virt_hooks.guest.topology import guest_topology, host_tree, picture

FOLDER = circles.ROOT / "doc/source/user/guests"
# Root ports on bus 0 of a guest.
_ROOT_PORTS = 4
_CELLS = {0: 0, 1: 1}
_WIDTH, _ROW, _INDENT, _MARGIN = 760, 24, 26, 12
_COLUMNS = {"Host": _MARGIN, "Guest": _WIDTH // 2 + _MARGIN}
_FILL = {"complex": "#eaf1fb", "bridge": "#fff", "spare": "#f4f4f4"}
_DEVICE = "#d0e6c8"
_TEXT = 'font-family="sans-serif" font-size="13" fill="#000"'
_OF = picture.Model


@dataclasses.dataclass(frozen=True, slots=True)
class Host:
    """Devices of a host that one guest has, and the name of each handle."""

    title: str
    devices: tuple[host_tree.HostDevice, ...]
    names: Mapping[str, str]


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """Row of a tree: its depth, kind and text."""

    depth: int
    kind: str
    text: str


def _device(
    *bridges: str, at: str, members: tuple[str, ...] = (), node: int = 0
) -> host_tree.HostDevice:
    return host_tree.HostDevice(bridges, at, at, members, node)


_SWITCH = ("pci0000:16", "0000:16:01.0", "0000:17:00.0")
_PF = ("pci0000:16", "0000:16:01.0")
HOSTS = {
    "switch": Host(
        "A GPU and a NIC below one switch, a card with two functions, a GPU"
        " on the other socket",
        (
            _device(*_SWITCH, "0000:18:00.0", at="0000:19:00.0"),
            _device(*_SWITCH, "0000:18:04.0", at="0000:1a:00.0"),
            _device(
                *("pci0000:16", "0000:16:03.0"),
                at="0000:2a:00.0",
                members=("0000:2a:00.1",),
            ),
            _device("pci0000:58", "0000:58:03.0", at="0000:5a:00.0", node=1),
        ),
        {
            "0000:19:00.0": "GPU",
            "0000:1a:00.0": "NIC",
            "0000:2a:00.0": "card",
            "0000:2a:00.1": "card",
            "0000:5a:00.0": "GPU",
        },
    ),
    "sockets": Host(
        "A GPU on each socket",
        (
            _device("pci0000:16", "0000:16:01.0", at="0000:17:00.0"),
            _device("pci0000:58", "0000:58:01.0", at="0000:59:00.0", node=1),
        ),
        {"0000:17:00.0": "GPU", "0000:59:00.0": "GPU"},
    ),
    "functions": Host(
        "Three VFs of one card",
        tuple(_device(*_PF, at=f"0000:17:00.{n}") for n in (4, 5, 6)),
        {f"0000:17:00.{n}": "VF" for n in (4, 5, 6)},
    ),
}


def mirror(host: Host) -> picture.Picture:
    """Return what nova-compute builds for a guest with these devices."""
    return picture.mirror(
        host.devices, _CELLS, guest_topology.SPARE_PORTS, _ROOT_PORTS + 1
    )


def render() -> dict[pathlib.Path, str]:
    """Return the content of each picture, by its path."""
    pictures = {FOLDER / f"{n}.svg": draw(h) for n, h in HOSTS.items()}
    texts = {
        FOLDER / f"{n}.txt": f"{print_tree(h)}\n\n{print_matrix(h)}\n"
        for n, h in HOSTS.items()
    }
    return pictures | texts


# -- lspci -tv and nvidia-smi topo -m --------------------------------------


def print_tree(host: Host) -> str:
    """Return what ``lspci -tv`` prints, without bus 0."""
    guest = _Guest(host)
    roots = [
        [f"[0000:{root:02x}]-{first}", *rest]
        for root in guest.drawn.expanders.values()
        for first, *rest in [_indent(guest.print_bus(root), len("[0000:05]-"))]
    ]
    return "\n".join(_join(roots, is_root=True))


class _Guest:
    """Buses of a guest, and the bridges on each."""

    def __init__(self, host: Host) -> None:
        self.names, self.drawn = host.names, mirror(host)
        self._bridges: dict[int, list[picture.Controller]] = {}
        for controller in self.drawn.controllers:
            if controller.slot is not None:
                below = self._bridges.setdefault(controller.bus, [])
                below.append(controller)

    def _find_last_bus(self, bus: int) -> int:
        below = self._bridges.get(bus, ())
        return max((self._find_last_bus(c.index) for c in below), default=bus)

    def print_bus(self, bus: int) -> list[str]:
        """Return the lines of all that is on a bus."""
        entries = [
            self._print_bridge(bridge) for bridge in self._bridges.get(bus, ())
        ]
        entries += [
            [f"{place.slot:02x}.{place.function}  {self.names[handle]}"]
            for handle, place in sorted(self.drawn.places.items())
            if place.bus == bus
        ]
        return _join(entries) if entries else [""]

    def _print_bridge(self, bridge: picture.Controller) -> list[str]:
        first, last = bridge.index, self._find_last_bus(bridge.index)
        buses = f"{first:02x}" if first == last else f"{first:02x}-{last:02x}"
        start = f"{bridge.slot:02x}.0-[{buses}]--"
        head, *rest = _indent(self.print_bus(first), len(start))
        return [start + head, *rest]


def _indent(lines: list[str], width: int) -> list[str]:
    """Return lines of which all but the first are moved to the right."""
    return [lines[0], *(" " * width + line for line in lines[1:])]


def _join(entries: Sequence[list[str]], is_root: bool = False) -> list[str]:
    """Return the lines of entries side by side, with their branches."""
    if len(entries) == 1 and not is_root:
        return ["--" + entries[0][0], *(f"  {x}" for x in entries[0][1:])]
    lines = []
    for number, (first, *rest) in enumerate(entries, 1):
        is_last = number == len(entries)
        lines.append(("\\-" if is_last else "+-") + first)
        lines += [("  " if is_last else "| ") + line for line in rest]
    return lines


def print_matrix(host: Host) -> str:
    """Return the matrix that ``nvidia-smi topo -m`` should print.

    Its words: at most one bridge (PIX), one root complex (PHB), one NUMA
    node (NODE), or none of them (SYS).
    """
    handles = [d.handle for d in host.devices]
    counts: dict[str, int] = {}
    names = []
    for handle in handles:
        name = host.names[handle]
        names.append(f"{name}{counts.get(name, 0)}")
        counts[name] = counts.get(name, 0) + 1
    guest = mirror(host)
    rows = [["", *names]] + [
        [name, *(_compare(guest, handle, peer) for peer in handles)]
        for name, handle in zip(names, handles, strict=True)
    ]
    return "\n".join("".join(f"{x:8}" for x in row).rstrip() for row in rows)


def _compare(guest: picture.Picture, handle: str, peer: str) -> str:
    if handle == peer:
        return "X"
    parents = {c.index: c for c in guest.controllers}

    def climb(device: str) -> Iterator[picture.Controller]:
        bus = guest.places[device].bus
        while bus in parents:
            yield parents[bus]
            bus = parents[bus].bus

    above = [*climb(peer)]
    shared = [c for c in climb(handle) if c in above]
    if shared:
        return "PHB" if shared[0].model is _OF.EXPANDER else "PIX"
    cells = {[*climb(device)][-1].cell for device in (handle, peer)}
    return "NODE" if len(cells) == 1 and None not in cells else "SYS"


# -- SVG -------------------------------------------------------------------


def draw(host: Host) -> str:
    """Return a host's devices and those of its guest as SVG.

    Attributes are used, not CSS: converters to PDF read them, too.
    """
    columns = {"Host": _list_host(host), "Guest": _list_guest(host)}
    height = _ROW * (max(map(len, columns.values())) + 1) + 2 * _MARGIN
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}"'
        f' height="{height}" viewBox="0 0 {_WIDTH} {height}">',
        "<!-- SPDX-License-Identifier: Apache-2.0 -->",
        "<!-- Written by tools/draw_guests.py. -->",
        f'<rect width="{_WIDTH}" height="{height}" fill="#fff"/>',
    ]
    for title, rows in columns.items():
        lines += _draw_column(title, _COLUMNS[title], rows)
    return "\n".join((*lines, "</svg>")) + "\n"


def _list_host(host: Host) -> list[Row]:
    """Return the bridges above the devices of a host, and the devices."""
    rows: dict[tuple[str, ...], Row] = {}
    for device in host.devices:
        for depth, bridge in enumerate(device.bridges):
            path = device.bridges[: depth + 1]
            kind = "bridge" if depth else "complex"
            node = f", node {device.numa_node}"
            text = bridge if depth else f"root complex {bridge[3:]}{node}"
            rows.setdefault(path, Row(depth, kind, text))
        for handle in device.handles:
            text = f"{host.names[handle]} {handle}"
            path = (*device.bridges, handle)
            rows[path] = Row(len(device.bridges), "device", text)
    return list(rows.values())


def _list_guest(host: Host) -> list[Row]:
    guest = mirror(host)
    depths: dict[int, int] = {}
    rows = []
    for controller in guest.controllers:
        depth = depths.get(controller.bus, -1) + 1
        depths[controller.index] = depth
        if controller.model is _OF.EXPANDER:
            bus = f"0000:{controller.index:02x}"
            text = f"root complex {bus}, node {controller.cell}"
            rows.append(Row(depth, "complex", text))
            continue
        text = f"0000:{controller.bus:02x}:{controller.slot:02x}.0"
        is_spare = controller.index in guest.spare_ports
        text += " empty port" if is_spare else ""
        rows.append(Row(depth, "spare" if is_spare else "bridge", text))
        for handle, place in sorted(guest.places.items()):
            if place.bus == controller.index:
                text = (
                    f"{host.names[handle]} 0000:{place.bus:02x}"
                    f":{place.slot:02x}.{place.function}"
                )
                rows.append(Row(depth + 1, "device", text))
    return rows


def _draw_column(title: str, column: int, rows: list[Row]) -> Iterator[str]:
    y = _MARGIN + _ROW // 2
    yield (
        f'<text x="{column}" y="{y}" font-weight="bold" {_TEXT}>{title}</text>'
    )
    last: dict[int, int] = {}
    for number, row in enumerate(rows, 1):
        x, y = column + _INDENT * row.depth, _MARGIN + _ROW * number
        if row.depth:
            side = x - _INDENT + 8
            yield (
                f'<path d="M {side} {last[row.depth - 1]} V {y + 10} H {x}"'
                ' fill="none" stroke="#888"/>'
            )
        last[row.depth] = y + 20
        yield (
            f'<rect x="{x}" y="{y}" width="{12 + 15 * len(row.text) // 2}"'
            f' height="20" rx="4" fill="{_FILL.get(row.kind, _DEVICE)}"'
            ' stroke="#888"/>'
        )
        text = saxutils.escape(row.text)
        yield f'<text x="{x + 6}" y="{y + 15}" {_TEXT}>{text}</text>'


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for path, content in render().items():
        path.write_text(content)
