# SPDX-License-Identifier: Apache-2.0
"""Views of hosts, cards and problems: what the report's page draws.

The page has no scripts: it sorts hosts by the ranks in their views, and
selects them by classes.
"""

import collections
import dataclasses
from collections.abc import Iterator, Mapping, Sequence

from nova_accel.inventory import wording
from placement_sync.fleet.report import (
    card_bars,
    card_strips,
    fleet_report,
    page_units,
)

# Colors of servers; a project has one of them.
COLORS = 6
# States with a pattern of their own; another has that of OTHER.
PATTERNS = ("ok", "faulted", "drained", "missing", "unreadable")
OTHER = "other"
# Kinds of problems by urgency; others come first.
_URGENCY = (
    fleet_report.STALE,
    "faulted",
    "unreadable",
    "missing",
    fleet_report.OVERALLOCATED,
    fleet_report.DISABLED,
    "drained",
)
# Devices of a fleet whose hosts are unfolded at first.
_MAX_UNFOLDED = 12
# Problems that are unfolded at first; of more, each kind is folded.
_MAX_PROBLEMS = 10
# Least width of a bar, width of a letter, and margins of a name, in pixels.
LEAST_WIDTH, _LETTER, _MARGINS = 640, 7.5, 12
# Least width of a part with its number, and of one in letters of the usual
# size, in percent of the bar.
_NUMBER, _NARROW = 2, 4
# Letters of a host's name in a line; the rest of it is in another.
_NAME = 26
# Parts that a list below the bar describes.
_LISTED = (card_bars.PartKind.SERVER, card_bars.PartKind.UNALLOCATED)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PartView:
    """Part of a bar, in percent of its width.

    ``style`` is its class. ``label`` has room in it; ``is_small`` is true
    for a number in small letters. ``number`` is its
    number in the list of parts, which has ``name`` and ``detail``; it is 0
    for a part that is not listed.
    """

    style: str
    start: float
    width: float
    label: str
    is_small: bool = False
    number: int = 0
    name: str = ""
    detail: str = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CardView:
    """A card with its bar; ``anchor`` is its id in the page."""

    anchor: str
    bar: card_bars.CardBar
    pattern: str
    usage: str
    parts: tuple[PartView, ...]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class HostRowView:
    """A host with its strip and its cards.

    ``usages`` are its used and all units in words, ``states`` the number of
    its devices in each state but ok. The ranks are 0 for the host with most
    room, and for that with most problems.
    """

    section: fleet_report.HostSection
    strip: card_strips.CardStrip
    cards: tuple[CardView, ...]
    usages: tuple[str, ...]
    states: Mapping[str, int]
    has_problem: bool
    has_room: bool
    is_unfolded: bool
    room_rank: int = 0
    problem_rank: int = 0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ProblemGroup:
    """Problems of one kind."""

    title: str
    problems: tuple[fleet_report.DeviceProblem, ...]
    is_unfolded: bool


class PageViews:
    """Views of a report, with the names and colors of its projects."""

    def __init__(
        self, report: fleet_report.FleetReport, prefix: str = ""
    ) -> None:
        """Take a report.

        :param prefix: begins the ids of cards, if the page has two reports.
        """
        self._report = report
        projects = sorted({usage.project for usage in report.projects} - {""})
        self.colors = {name: n % COLORS for n, name in enumerate(projects)}
        self._labels = {u.project: u.label for u in report.projects}
        bars = (bar for section in report.hosts for bar in section.bars)
        #: Ids of the cards in the page, by uuid.
        self.anchors = {
            bar.row.device.uuid: f"{prefix}card-{number}"
            for number, bar in enumerate(bars, 1)
        }

    def measure_names(self) -> int:
        """Return the width of a column of the hosts' names, in letters."""
        lengths = (len(section.row.name) for section in self._report.hosts)
        return min(max(lengths, default=0), _NAME)

    def list_hosts(self) -> tuple[HostRowView, ...]:
        """Return the hosts by name, with their ranks."""
        hosts = [self._build_host(section) for section in self._report.hosts]
        room = _rank([_measure_room(host) for host in hosts])
        problems = _rank([_count_problems(host) for host in hosts])
        return tuple(
            dataclasses.replace(
                host, room_rank=room[index], problem_rank=problems[index]
            )
            for index, host in enumerate(hosts)
        )

    def list_problems(self) -> Iterator[ProblemGroup]:
        """Yield the problems by kind, the most urgent first."""
        by_kind = collections.defaultdict(list)
        for problem in self._report.problems:
            by_kind[problem.kind].append(problem)
        for kind in sorted(by_kind, key=_find_urgency):
            problems = tuple(by_kind[kind])
            yield ProblemGroup(
                title=_title_problems(kind, len(problems)),
                problems=problems,
                is_unfolded=len(self._report.problems) <= _MAX_PROBLEMS,
            )

    def _build_host(self, section: fleet_report.HostSection) -> HostRowView:
        states = {s: n for s, n in section.row.states.items() if s != "ok"}
        is_disabled = section.row.is_disabled
        return HostRowView(
            section=section,
            strip=card_strips.build_strip(section.bars),
            cards=tuple(self._build_card(bar) for bar in section.bars),
            usages=tuple(map(page_units.format_usage, section.row.usages)),
            states=states,
            has_problem=bool(states)
            or is_disabled
            or section.row.is_stale
            or any(_is_overallocated(bar) for bar in section.bars),
            has_room=not (is_disabled or section.row.is_stale)
            and any(bar.row.fits for bar in section.bars),
            is_unfolded=len(self.anchors) <= _MAX_UNFOLDED,
        )

    def _build_card(self, bar: card_bars.CardBar) -> CardView:
        return CardView(
            anchor=self.anchors[bar.row.device.uuid],
            bar=bar,
            pattern=find_pattern(bar.row.state),
            usage=page_units.format_usage(bar.row.usage),
            parts=tuple(self._list_parts(bar)),
        )

    def _list_parts(self, bar: card_bars.CardBar) -> Iterator[PartView]:
        number = 0
        for part in bar.parts:
            view = PartView(
                style=part.kind.value,
                start=round(100 * part.start / bar.total, 2),
                width=round(100 * part.size / bar.total, 2),
                label="",
            )
            if part.kind not in _LISTED:
                yield dataclasses.replace(
                    view, label=_fit(part.text.partition(",")[0], view.width)
                )
                continue
            number += 1
            is_server = part.kind is card_bars.PartKind.SERVER
            name = part.holder if is_server else part.text
            label = _fit(f"{number} {name}", view.width) or (
                str(number) if view.width >= _NUMBER else ""
            )
            yield dataclasses.replace(
                view,
                style=self._find_style(part) if is_server else view.style,
                number=number,
                name=name,
                detail=self._describe(part),
                label=label,
                is_small=view.width < _NARROW,
            )

    def _find_style(self, part: card_bars.BarPart) -> str:
        return f"s{self.colors.get(part.project, 0)}"

    def _describe(self, part: card_bars.BarPart) -> str:
        """Return the profile and the project of a part, as far as known."""
        if part.held_part is None:
            return ""
        profile = page_units.format_part(part.held_part)
        project = self._labels.get(part.project, part.project)
        return ", ".join(filter(None, (profile, project)))


def find_pattern(state: str) -> str:
    return state if state in PATTERNS else OTHER


def _fit(text: str, width: float) -> str:
    """Return a text if it has room in a part, else ""."""
    needed = len(text) * _LETTER + _MARGINS
    return text if needed <= width * LEAST_WIDTH / 100 else ""


def _find_urgency(kind: str) -> tuple[int, str]:
    is_listed = kind in _URGENCY
    return _URGENCY.index(kind) if is_listed else -1, kind


def _title_problems(kind: str, count: int) -> str:
    if kind == fleet_report.STALE:
        return f"{wording.count_of(count, 'host')} stale"
    if kind == fleet_report.DISABLED:
        return f"{wording.count_of(count, 'compute service')} disabled"
    devices = wording.count_of(count, "device")
    if kind == fleet_report.OVERALLOCATED:
        return f"{devices} with more allocated than there is"
    return f"{devices} {kind}"


def _is_overallocated(bar: card_bars.CardBar) -> bool:
    return bar.row.usage.used > bar.row.usage.total


def _count_problems(host: HostRowView) -> float:
    row = host.section.row
    return sum(host.states.values()) + row.is_disabled + row.is_stale


def _measure_room(host: HostRowView) -> float:
    """Return the free parts of a host's cards that fit something."""
    if not host.has_room:
        return 0.0
    return sum(
        part.size / bar.total
        for bar in host.section.bars
        for part in bar.parts
        if bar.row.fits and part.kind is card_bars.PartKind.FREE
    )


def _rank(amounts: Sequence[float]) -> list[int]:
    """Return the rank of each amount; the largest has 0."""
    order = sorted(range(len(amounts)), key=lambda index: -amounts[index])
    ranks = [0] * len(amounts)
    for rank, index in enumerate(order):
        ranks[index] = rank
    return ranks
