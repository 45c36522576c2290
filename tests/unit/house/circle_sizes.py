# SPDX-License-Identifier: Apache-2.0
"""Limits of the circles in lines, with their history.

The last entry of a history is the limit. A change that needs more lines adds
an entry with the date and the reason; a change that removes lines may lower
it. The sizes of today are printed by ``python tools/circles.py``.
"""

from typing import NamedTuple


class Limit(NamedTuple):
    """Limit of lines since a day, and its reason."""

    lines: int
    since: str
    reason: str


# Lines to reach. That of the heart was set when it had the scheduler and the
# pass, too: their sum is limited, and printed, beside it.
GOALS = {"inside Nova": 46_000, "heart": 30_000}
_PACKAGE = "5 % above the size on the day of its move"
_FIRST = "the size of that day, and room for changes under way"
_ONE_CARD = (
    "readers of one card, and what each has read: less is read and called, by"
    " more code (host_readings, repeated_reader, cards, file_cache)"
)
_CAUSES = "causes of faults as traits, which a laptop can read"
_NAMES = "names of cards and of full profiles, which a laptop can read"
_LOST_UEVENTS = (
    "cards that change without a uevent (presence), and a full state_dir"
)
_NATIVE = "flavors for Nova's own vGPUs, served as profiles"
_REGISTERED = (
    "NVML, FPGA, live migration, mdevs and vGPUs are registered; hot attach"
    " has its claims and guests, and commands what only they call"
)
_UNOFFERED = (
    "accelerators that are not offered, read by nova-compute for other"
    " machines: modules of inspect, and their lists"
)
_CHOICES = (
    "ordered profiles: choices of a flavor, tried by the scheduler, stored by"
    " the host"
)
_COMMANDS = (
    "files, clients and grammars that commands alone read are out of Nova;"
    " allocations have one reader"
)
_ASKED = (
    "Nova's parser alone reads [pci] device_spec in nova-compute; accelerators"
    " that are not offered are loaded when another machine asks"
)
_UNCALLED = (
    "what commands and tests alone call is out of the modules of Nova:"
    " remedies in a text, versions, domains, an ended service, applied plans"
)
_TOPOLOGY = "the host's PCIe topology in guests, and its place in the heart"
_CHOSEN = (
    "NVLink peers in guests, and cards of a live migration that the guest's"
    " tree chooses"
)
_USABLE = (
    "hosts and cards are chosen by what usual requests could use: density"
    " above FGD's as installed"
)
_ADDRESS_BITS = "address bits that BARs need, set in guests and printed"
_QUIET = "passes that read servers and guests only after changes"
_DATA = (
    "PCI ids, extra specs and versions are data files; modules of one caller"
    " are in it; packages list no modules"
)
_ADAPTER = "Nova opens Placement for the passes of nova-compute"
_TESTED = "what tests alone call is in tests, and examples of calls too"
_BOUNDARY = "5 % above the size on the day when it got a limit"
_SCHEDULER = "what nova-scheduler and nova-api alone load is a circle"
_ONE_CLIENT = (
    "one client of Placement in Nova, one format of notifications; misspelt"
    " options are the doctor's, and moved providers are reported"
)
_APART = (
    "the pass, monitoring, the metadata of guests and the config source are"
    " circles: they register, or are other processes'"
)
_DESCRIBED = "guests read links, switches and NUMA nodes of their host"
HISTORY: dict[str, tuple[Limit, ...]] = {
    "inside Nova": (
        Limit(54_500, "2026-11-27", _FIRST),
        Limit(
            54_900,
            "2026-11-27",
            "hints of vendor drivers are remedies that tests follow",
        ),
        Limit(55_500, "2026-11-27", _ONE_CARD),
        Limit(
            55_600,
            "2026-11-27",
            "claims in a revert, unsaved resizes, servers without any slot",
        ),
        Limit(55_750, "2026-11-27", _CAUSES),
        Limit(56_000, "2026-11-27", _LOST_UEVENTS),
        Limit(
            56_250,
            "2026-11-27",
            "habits of openstack: flat cells, options before the command,"
            " undrain --wait",
        ),
        Limit(56_400, "2026-11-27", _NAMES),
        Limit(56_200, "2026-11-27", _REGISTERED),
        Limit(56_400, "2026-11-27", "requests at the same time, and waits"),
        Limit(56_800, "2026-11-27", _NATIVE),
        Limit(57_300, "2026-11-27", _UNOFFERED),
        Limit(57_500, "2026-11-27", "the seam of adoptions"),
        Limit(57_600, "2026-11-27", "log lines with their reason once"),
        Limit(57_050, "2026-11-27", _COMMANDS),
        Limit(57_220, "2026-11-28", "adoptions of PCI functions"),
        Limit(57_270, "2026-11-28", "phases of passes that start together"),
        Limit(58_060, "2026-11-28", _USABLE),
        Limit(58_500, "2026-11-28", _CHOICES),
        Limit(57_900, "2026-11-28", _ASKED),
        Limit(57_550, "2026-11-28", _UNCALLED),
        Limit(57_450, "2026-11-28", "metrics are written to a file only"),
        Limit(57_480, "2026-11-28", "moves of servers adopted from Cyborg"),
        Limit(57_560, "2026-11-28", "a server with a card to itself"),
        Limit(57_460, "2026-11-28", "the template of a driver is no driver"),
        Limit(57_900, "2026-11-28", _DESCRIBED),
        Limit(59_900, "2026-11-28", _TOPOLOGY),
        Limit(60_200, "2026-11-28", _CHOSEN),
        Limit(60_600, "2026-11-28", _ADDRESS_BITS),
        Limit(60_700, "2026-11-28", _QUIET),
        Limit(60_970, "2026-11-28", "room for BARs in guests that run"),
        Limit(59_950, "2026-11-28", _DATA),
        Limit(59_800, "2026-11-28", _ADAPTER),
        Limit(59_720, "2026-11-28", _TESTED),
        Limit(59_650, "2026-11-28", _APART),
        Limit(59_510, "2026-11-28", _ONE_CLIENT),
    ),
    "heart": (
        Limit(39_500, "2026-11-27", _FIRST),
        Limit(40_000, "2026-11-27", _ONE_CARD),
        Limit(
            40_100,
            "2026-11-27",
            "errors of the start in one module, for the service and doctor",
        ),
        Limit(40_300, "2026-11-27", _CAUSES),
        Limit(40_550, "2026-11-27", _LOST_UEVENTS),
        Limit(
            40_600,
            "2026-11-27",
            "one group name in the proposals of inspect and flavor create",
        ),
        Limit(40_800, "2026-11-27", _NAMES),
        Limit(38_300, "2026-11-27", _REGISTERED),
        Limit(38_600, "2026-11-27", "requests at the same time, and waits"),
        Limit(38_900, "2026-11-27", _NATIVE),
        Limit(39_300, "2026-11-27", _UNOFFERED),
        Limit(39_350, "2026-11-27", "aliases of Nova that get no device"),
        Limit(
            39_550,
            "2026-11-27",
            "the seam of adoptions, and mdevs with uuids of other programs",
        ),
        Limit(39_600, "2026-11-27", "log lines with their reason once"),
        Limit(38_900, "2026-11-27", _COMMANDS),
        Limit(38_950, "2026-11-28", "notes of unclean functions as one"),
        Limit(39_140, "2026-11-28", "adoptions of PCI functions"),
        Limit(39_880, "2026-11-28", _USABLE),
        Limit(40_300, "2026-11-28", _CHOICES),
        Limit(39_700, "2026-11-28", _ASKED),
        Limit(39_400, "2026-11-28", _UNCALLED),
        Limit(
            39_150,
            "2026-11-28",
            "functions of images are registered in nova-scheduler, too",
        ),
        Limit(
            39_250,
            "2026-11-28",
            "losses of hosts are computed once for the servers of a request",
        ),
        Limit(39_700, "2026-11-28", _DESCRIBED),
        Limit(40_100, "2026-11-28", _TOPOLOGY),
        Limit(40_200, "2026-11-28", _CHOSEN),
        Limit(40_400, "2026-11-28", _QUIET),
        Limit(39_500, "2026-11-28", _DATA),
        Limit(39_380, "2026-11-28", _ADAPTER),
        Limit(39_340, "2026-11-28", _TESTED),
        Limit(33_930, "2026-11-28", _SCHEDULER),
        Limit(30_000, "2026-11-28", _APART),
    ),
    "heart with the scheduler": (
        Limit(39_340, "2026-11-28", "the limit of the heart before"),
        Limit(35_400, "2026-11-28", _APART),
    ),
    "heart with the scheduler and the pass": (
        Limit(37_450, "2026-11-28", "all that the goal of the heart counted"),
    ),
    "scheduler": (Limit(5_680, "2026-11-28", _BOUNDARY),),
    "vendor drivers": (Limit(7_660, "2026-11-28", _BOUNDARY),),
    "NVML": (Limit(2_350, "2026-11-28", _BOUNDARY),),
    "hot attach": (Limit(3_120, "2026-11-28", _BOUNDARY),),
    "live migration": (Limit(1_300, "2026-11-28", _BOUNDARY),),
    "topology": (Limit(2_430, "2026-11-28", _BOUNDARY),),
    "FPGA": (Limit(3_760, "2026-11-28", _BOUNDARY),),
    "guest metadata": (Limit(550, "2026-11-28", _BOUNDARY),),
    "pass": (Limit(2_130, "2026-11-28", _BOUNDARY),),
    "monitoring": (Limit(1_920, "2026-11-28", _BOUNDARY),),
    "config source": (Limit(310, "2026-11-28", _BOUNDARY),),
    "doctor": (
        Limit(6_000, "2026-11-27", _PACKAGE),
        Limit(6_300, "2026-11-27", "nova.conf as nova-compute reads it"),
        Limit(6_320, "2026-11-28", "remedies of single causes"),
        Limit(
            6_400,
            "2026-11-28",
            "the method of nova-scheduler that the filter wraps",
        ),
        Limit(6_440, "2026-11-28", "the second method that the filter wraps"),
        Limit(6_480, "2026-11-28", _ADDRESS_BITS),
        Limit(6_510, "2026-11-28", "misspelt options, out of nova-compute"),
    ),
    "fleet": (
        Limit(9_720, "2026-11-27", _PACKAGE),
        Limit(
            9_900,
            "2026-11-27",
            "hosts that do not report, and causes of faults, in each list",
        ),
        Limit(
            10_300,
            "2026-11-27",
            "names of cards, waits that say what for, one line of explain",
        ),
        Limit(
            10_500,
            "2026-11-27",
            "the gateway, by which laptops and users reach nova-compute",
        ),
        Limit(10_800, "2026-11-27", "explain: models, places, drains"),
        Limit(11_300, "2026-11-27", _UNOFFERED),
        Limit(
            12_400,
            "2026-11-27",
            "a host is removed as a whole: plan, moves, names, flavors, files",
        ),
        Limit(
            12_500,
            "2026-11-28",
            "functions that are not clean are named by a removal, and noted",
        ),
        Limit(
            13_550,
            "2026-11-28",
            "stock for tenants: levels, reader, file, page, service, commands",
        ),
        Limit(
            13_650,
            "2026-11-28",
            "checks of the limit of candidates, and of traits in flavors",
        ),
        Limit(13_800, "2026-11-28", _CHOICES),
        Limit(
            13_350,
            "2026-11-28",
            "one way to credentials, and no names that 0.9.0 deprecated",
        ),
        Limit(
            13_450,
            "2026-11-28",
            "verdicts on the candidates of plans, and the page of a change",
        ),
    ),
    "planning": (
        Limit(3_500, "2026-11-28", "plans of moves, and of capacity"),
        Limit(
            6_000,
            "2026-11-28",
            "the snapshot, the scheduler's choice on it, and new hardware",
        ),
    ),
    "audit": (Limit(2_790, "2026-11-27", _PACKAGE),),
    "adoption": (
        Limit(1_900, "2026-11-27", "plan, its file, apply, undo and status"),
        Limit(
            2_400,
            "2026-11-27",
            "the commands, and new servers that an undo expresses",
        ),
        Limit(
            3_750,
            "2026-11-28",
            "a second source: PCI functions, by aliases and Nova's records",
        ),
        Limit(
            4_120,
            "2026-11-28",
            "a third source: accelerator requests of Cyborg",
        ),
    ),
    "ironic": (
        Limit(1_860, "2026-11-27", _PACKAGE),
        Limit(
            1_900,
            "2026-11-27",
            "deadlines of answers moved from the client of Placement to the"
            " only download that needs them",
        ),
    ),
    "licenses": (Limit(660, "2026-11-27", _PACKAGE),),
    "conformance": (
        Limit(1_640, "2026-11-27", _PACKAGE),
        Limit(1_750, "2026-11-28", "the template of a driver"),
    ),
}
