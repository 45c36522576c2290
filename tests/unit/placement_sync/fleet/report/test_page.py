# SPDX-License-Identifier: Apache-2.0
"""Page of a report, by its structure."""

import dataclasses
import itertools
import re
from collections.abc import Iterator
from html import parser

import pytest
from hypothesis import given, settings

from nova_accel.catalog import loader
from nova_accel.model import names, providers
from placement_sync.fleet.devices import device_rows, fleet_state
from placement_sync.fleet.flavors import offered_devices
from placement_sync.fleet.report import (
    card_strips,
    fleet_report,
    page_units,
    report_page,
)
from tests.support import examples, golden
from tests.support.placement import clouds, fleets, sized_fleets

TYPES = offered_devices.VgpuTypes(loader.load())
# Elements of HTML without an end; those of SVG end with "/>".
VOID = frozenset({"meta", "input"})


class Element:
    """An element of a page, with its children: elements and texts."""

    def __init__(self, tag: str, attributes: dict[str, str]) -> None:
        self.tag, self.attributes = tag, attributes
        self.children: list[Element | str] = []

    @property
    def classes(self) -> list[str]:
        return self.attributes.get("class", "").split()

    @property
    def text(self) -> str:
        """Return all text in it, words with one space between them."""
        parts = (c if isinstance(c, str) else c.text for c in self.children)
        return " ".join(" ".join(parts).split())

    def walk(self) -> Iterator["Element"]:
        yield self
        for child in self.children:
            if isinstance(child, Element):
                yield from child.walk()

    def find(self, tag: str, *classes: str) -> list["Element"]:
        return [
            element
            for element in self.walk()
            if element.tag == tag and {*classes} <= {*element.classes}
        ]


class Page(parser.HTMLParser):
    """A page as a tree; each element ends where it should."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.root = Element("", {})
        self._open = [self.root]
        self.feed(text)
        self.close()
        assert self._open == [self.root]

    def handle_starttag(
        self, tag: str, attrs: list[tuple[str, str | None]]
    ) -> None:
        element = self._add(tag, attrs)
        if tag not in VOID:
            self._open.append(element)

    def handle_startendtag(
        self, tag: str, attrs: list[tuple[str, str | None]]
    ) -> None:
        self._add(tag, attrs)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop().tag == tag

    def handle_data(self, data: str) -> None:
        self._open[-1].children.append(data)

    def _add(self, tag: str, attrs: list[tuple[str, str | None]]) -> Element:
        element = Element(tag, {name: value or "" for name, value in attrs})
        self._open[-1].children.append(element)
        return element


def render(
    fleet: fleet_state.Fleet, *flavors: fleet_report.FlavorSpecs
) -> Element:
    report = fleet_report.build(fleets.HEADER, fleet, flavors, TYPES)
    return Page(report_page.render(report)).root


@pytest.fixture(scope="module")
def page() -> Element:
    return render(sized_fleets.build_fleet(30))


def list_ids(page: Element) -> list[str]:
    ids = (element.attributes.get("id") for element in page.walk())
    return [each for each in ids if each]


def test_problems_come_first_and_lead_to_their_cards(page: Element) -> None:
    first, second, *_ = page.find("section")
    assert first.find("h2")[0].text == "Problems"
    assert second.find("h2")[0].text == "Hosts"
    assert [
        each.find("summary")[0].text for each in first.find("details")
    ] == [
        "1 device faulted",
        "1 device unreadable",
        "1 device missing",
        "1 compute service disabled",
        "1 device drained",
    ]
    cards = {f.attributes["id"]: f for f in page.find("figure")}
    for link in first.find("a"):
        card = cards[link.attributes["href"].removeprefix("#")]
        address = link.text.partition("/")[2]
        assert card.find("strong")[0].text == address
    assert len(first.find("a")) == 4


def test_commands_of_remedies_can_be_copied(page: Element) -> None:
    commands = [code.text for code in page.find("code")]
    assert any(text.endswith("heal 0000:71:00.0") for text in commands)
    assert (
        "openstack compute service set --enable gpu-004 nova-compute"
        in commands
    )
    assert "`" not in page.find("main")[0].text


def test_each_link_has_its_place(page: Element) -> None:
    ids = list_ids(page)
    assert len(ids) == len(set(ids))
    links = [a.attributes["href"] for a in page.find("a")]
    assert {link.removeprefix("#") for link in links} <= set(ids)
    (sections,) = page.find("nav")
    assert [a.attributes["href"] for a in sections.find("a")] == [
        f"#{h2.attributes['id']}" for h2 in page.find("h2")
    ]


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 30, 240])
def test_each_host_has_a_small_bar_for_each_card(count: int) -> None:
    hosts = render(sized_fleets.build_fleet(count)).find("details", "host")
    bars = 0
    for host in hosts:
        (summary,) = host.find("summary")
        (strip,) = summary.find("svg")
        small = strip.find("g")
        assert len(small) == len(host.find("figure"))
        titles = [bar.find("title")[0].text for bar in small]
        for title, card in zip(titles, host.find("figure"), strict=True):
            assert title.startswith(card.find("strong")[0].text)
        bars += len(small)
    assert bars == count


def test_a_card_in_a_state_shows_it_when_it_is_full() -> None:
    for trait, state in (
        (names.FAULTED_TRAIT, "faulted"),
        (names.DRAINED_TRAIT, "drained"),
        (names.MISSING_TRAIT, "missing"),
        (names.UNKNOWN_TRAIT, "unreadable"),
    ):
        card = clouds.gpu("A40", (), trait)
        own = [fleets.holding(card, n, "8Q") for n in range(6)]
        fleet = fleet_state.Fleet(
            cloud=offered_devices.Cloud(
                devices=(fleets.with_used(card, own),)
            ),
            holdings=tuple(own),
        )
        page = render(fleet)
        (bar,) = page.find("svg", "bar", state)
        band = bar.find("rect", state)[0]
        assert band.attributes["width"] == "100%"
        assert not bar.find("rect", "free") + bar.find("rect", "reserved")
        (small,) = page.find("summary")[-1].find("g")
        assert len(small.find("rect", state)) == 3
        assert state in page.find("figcaption")[0].text


def test_states_differ_without_colors(page: Element) -> None:
    shapes = {}
    for pattern in page.find("pattern"):
        shapes[pattern.attributes["id"]] = (
            tuple(
                (
                    child.tag,
                    sorted(
                        a for a in child.attributes.items() if a[0] != "style"
                    ),
                )
                for child in pattern.walk()
                if child is not pattern
            ),
            pattern.attributes.get("patternTransform"),
        )
    assert len(shapes) == 6
    for first, second in itertools.combinations(shapes.values(), 2):
        assert first != second


@given(fleets.fleets())
@settings(max_examples=examples.examples(50))
def test_each_holder_is_listed_below_its_card(
    fleet: fleet_state.Fleet,
) -> None:
    page = render(fleet)
    cards = {
        (figure.find("strong")[0].text): [li.text for li in figure.find("li")]
        for figure in page.find("figure")
    }
    devices = {device.uuid: device for device in fleet.devices}
    for holding in fleet.holdings:
        server = fleet.servers.get(holding.consumer)
        name = server.name if server else holding.consumer
        listed = cards[devices[holding.provider].address]
        assert any(text.startswith(f"{name} ") for text in listed)


def test_memory_is_in_gb_everywhere() -> None:
    card = clouds.gpu("A40", ("8Q",))
    # A holder without a server has no profile.
    move = fleets.holding(card, 9, "8Q")
    fleet = fleet_state.Fleet(
        cloud=offered_devices.Cloud(devices=(fleets.with_used(card, [move]),)),
        holdings=(move,),
    )
    text = render(fleet).find("body")[0].text
    assert " MB" not in text and "8/48 GB" in text
    assert "00000009-0000-4000-8000-000000000000 8 GB" in text


@pytest.mark.parametrize(
    ("megabytes", "text"),
    [
        (0, "0 GB"),
        (512, "0.5 GB"),
        (24576, "24 GB"),
        (48640, "47.5 GB"),
        (1024 * 1234567, "1234567 GB"),
    ],
)
def test_memory_in_words(megabytes: int, text: str) -> None:
    assert page_units.format_memory(megabytes) == text
    usage = device_rows.UnitUsage(used=0, total=megabytes, unit="MB")
    assert page_units.format_usage(usage) == f"0/{text}"


def test_no_heading_is_empty() -> None:
    assert [h2.text for h2 in render(fleet_state.Fleet()).find("h2")] == []
    card = clouds.gpu("A40", ("8Q",))
    fleet = fleet_state.Fleet(cloud=offered_devices.Cloud(devices=(card,)))
    page = render(fleet)
    assert [h2.text for h2 in page.find("h2")] == [
        "Hosts",
        "Free memory by model",
    ]
    assert "No problems." in page.text
    for section in page.find("section"):
        assert section.find("details") or section.find("td")


@pytest.mark.slow
def test_hosts_are_selected_and_ordered_without_scripts() -> None:
    page = render(sized_fleets.build_fleet(240))
    hosts = page.find("details", "host")
    problem = [h for h in hosts if "problem" in h.classes]
    room = [h for h in hosts if "room" in h.classes]
    labels = {
        label.find("input")[0].attributes["id"]: label.text
        for label in page.find("label")
    }
    assert labels["only-problems"] == f"with problems ({len(problem)})"
    assert labels["only-room"] == f"with room ({len(room)})"
    assert labels["only-full"] == f"without room ({len(hosts) - len(room)})"
    assert 0 < len(problem) < len(hosts) and 0 < len(room) < len(hosts)
    for letter in "rp":
        ranks = [
            int(re.findall(rf"--{letter}:(\d+)", h.attributes["style"])[0])
            for h in hosts
        ]
        assert sorted(ranks) == list(range(len(hosts)))
        first = hosts[ranks.index(0)]
        assert first in (room if letter == "r" else problem)


def test_only_small_fleets_are_unfolded() -> None:
    for count, is_open in ((12, True), (13, False)):
        hosts = render(sized_fleets.build_fleet(count)).find("details", "host")
        assert {"open" in h.attributes for h in hosts} == {is_open}


def test_a_host_with_many_devices_has_lines_of_small_bars() -> None:
    cards = tuple(
        clouds.gpu("A40", (), at=f"node1/0000:{number:02x}:00.0")
        for number in range(20)
    )
    fleet = fleet_state.Fleet(cloud=offered_devices.Cloud(devices=cards))
    report = fleet_report.build(fleets.HEADER, fleet, (), TYPES)
    strip = card_strips.build_strip(report.hosts[0].bars)
    assert [bar.y for bar in strip.bars].count(0) == card_strips.PER_LINE
    for bar in strip.bars:
        assert bar.x + card_strips.WIDTH <= strip.width
        assert bar.y + card_strips.HEIGHT <= strip.height


def test_a_device_without_units_has_an_empty_bar() -> None:
    """Such as an FPGA whose regions have them."""
    card = clouds.device({}, "INTEL_PAC")
    fleet = fleet_state.Fleet(cloud=offered_devices.Cloud(devices=(card,)))
    (figure,) = render(fleet).find("figure")
    assert figure.find("rect") == []


def test_the_page_loads_nothing(page: Element) -> None:
    loaded = [
        (name, value)
        for element in page.walk()
        for name, value in element.attributes.items()
        if name in ("src", "href", "srcset", "data", "action")
    ]
    assert loaded and all(value.startswith("#") for _, value in loaded)
    tags = {element.tag for element in page.walk()}
    assert not tags & {"script", "link", "img", "iframe", "object", "form"}
    (style,) = page.find("style")
    assert "@import" not in style.text
    assert set(re.findall(r"url\((.)", style.text)) == {"#"}


def test_names_of_others_are_text() -> None:
    """Users choose the names of servers, operators those of flavors."""
    name = "\"'><script>alert(1)</script>&amp;"
    card = clouds.gpu("A40", ("8Q",), names.DRAINED_TRAIT)
    own = fleets.holding(card, 1, "8Q")
    server = dataclasses.replace(
        fleets.server(1, "p", "8Q"), name=name, project="p"
    )
    device = dataclasses.replace(fleets.with_used(card, [own]), host=name)
    fleet = fleet_state.Fleet(
        cloud=offered_devices.Cloud(devices=(device,)),
        holdings=(own,),
        servers={server.uuid: server},
        project_names={"p": name},
        gaps=(name,),
    )
    flavor = fleet_report.FlavorSpecs(
        name=name, specs={"accelerator:packing": name}, needs={}
    )
    page = render(fleet, flavor)
    assert not page.find("script")
    assert page.find("li")[-1].text == f"{name} A40-8Q, {name}"
    assert page.find("span", "name")[0].text == name
    assert page.find("p", "gap")[0].text == f"Not known: {name}"
    (flavors,) = (
        section
        for section in page.find("section")
        if section.find("h2")[0].text == "Flavors"
    )
    assert flavors.find("th")[-1].text == name
    assert not any(
        "alert" in value
        for element in page.walk()
        for value in element.attributes.values()
    )


def test_more_allocated_than_there_is_is_a_problem() -> None:
    card = clouds.gpu("A40", ("8Q",))
    own = providers.Allocation(
        provider=card.uuid,
        consumer=fleets.consumer(1),
        amounts={"VGPU": 1, names.GPU_MEMORY_CLASS: 2 * fleets.MEMORY_MB},
    )
    fleet = fleet_state.Fleet(
        cloud=offered_devices.Cloud(
            devices=(
                fleets.with_used(card, [own]),
                clouds.gpu(
                    "A100", ("3-20C",), layout="mig", at="node2/0000:42:00.0"
                ),
            )
        ),
        holdings=(own,),
    )
    page = render(fleet)
    assert page.find("details", "host", "problem")
    texts = [
        " ".join(text.split())
        for element in page.walk()
        if element.tag != "style"
        for text in element.children
        if isinstance(text, str) and text.strip()
    ]
    golden.check(golden.PLACE / "fleet/page.txt", "\n".join(texts) + "\n")
