# SPDX-License-Identifier: Apache-2.0
"""Changes that cause another text of a check than its case prints."""

from nova_accel.doctor.host_checks import Level
from tests.support.hosts.prepared import L40S, QAT, T4, at
from tests.unit.nova_accel.doctor.changes import (
    CASES,
    FAIL,
    LINK,
    NOTE,
    NOVA_CONF,
    SERVER,
    STATE,
    WARN,
    Case,
    arguments,
    conf,
    no_vfs,
    reported,
    section,
    switch,
)

#: Further causes of a check, which print other texts than its case.
CAUSES: tuple[tuple[str, Case], ...] = (
    *(
        (
            "pci.large-bars",
            Case(
                level,
                {
                    **CASES["pci.large-bars"].change,
                    "/proc/cpuinfo": "processor\t: 0\naddress sizes\t:"
                    f" {bits} bits physical, 48 bits virtual\n",
                },
            ),
        )
        for level, bits in ((NOTE, 46), (WARN, 39))
    ),
    (
        "nova.driver",
        Case(NOTE, {NOVA_CONF: "[DEFAULT]\ncompute_driver = a.B\n"}),
    ),
    (
        "nova.mdev-types",
        Case(
            NOTE,
            section("[devices]\nenabled_mdev_types = nvidia-232")
            | {"/sys/class/mdev_bus": None},
        ),
    ),
    ("nova.pci-spec", Case(Level.UNKNOWN, section("[pci]\ndevice_spec = 1"))),
    (
        "nova.pci-spec",
        Case(
            WARN,
            section('[pci]\ndevice_spec = {"address": "41:00.0"}')
            | no_vfs(L40S),
        ),
    ),
    (
        "nv.branch",
        Case(
            NOTE,
            {
                "/proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX"
                " x86_64 Kernel Module  999.85.07  Thu\n",
            },
        ),
    ),
    (
        "nv.nvswitch",
        Case(
            NOTE,
            switch()
            | conf(
                "[nova_accel]",
                '[nova_accel]\ndevice_spec = {"vendor_id": "10de",'
                ' "product_id": "22a3", "use": "passthrough"}',
            ),
        ),
    ),
    (
        "nv.fabric",
        Case(WARN, {}, gpus=reported(fabric=("in_progress", 0))),
    ),
    ("pci.sriov", Case(WARN, {at(QAT, "sriov_totalvfs"): "0\n"})),
    (
        "pci.aer-fatal",
        Case(
            WARN,
            {
                at(L40S, "..").rpartition(f"/{L40S}")[0]
                + "/aer_rootport_total_err_fatal": "1\n"
            },
        ),
    ),
    ("pci.reset", Case(FAIL, {at(T4, "reset_method"): "\n"})),
    (
        "remove.claims",
        Case(FAIL, {"/sys/bus/mdev/devices/" + SERVER: LINK("/sys")}),
    ),
    ("remove.functions", Case(Level.UNKNOWN, {f"{STATE}/book.json": "{"})),
    ("pci.msi", Case(FAIL, arguments("pci=nomsi"))),
)
