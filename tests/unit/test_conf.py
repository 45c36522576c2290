# SPDX-License-Identifier: Apache-2.0
"""The options, read from files as operators write them."""

import pathlib
import re

import pytest

from nova_accel import conf, errors, policy


def read(tmp_path: pathlib.Path, *lines: str) -> conf.Settings:
    path = tmp_path / "nova.conf"
    path.write_text("\n".join(["[nova_accel]", *lines]) + "\n")
    return conf.read_files([str(path)])


def test_nothing_set_changes_no_mode(tmp_path: pathlib.Path) -> None:
    settings = read(tmp_path)
    assert settings.rules == policy.Policy()
    assert settings.rules.rule("0000:41:00.0").is_mixed is None
    assert settings.root == "/"


def test_plain_options_are_for_all_devices(tmp_path: pathlib.Path) -> None:
    rules = read(
        tmp_path,
        "vgpu_sizes = mixed",
        "mig_instances = dynamic",
        'device_spec = {"address": "0000:41:*", "sizes": "equal"}',
        'device_spec = {"address": "0000:42:*", "num_vfs": 8}',
    ).rules
    assert rules.rule("0000:41:00.0").is_mixed is False
    assert rules.rule("0000:42:00.0").is_mixed
    assert rules.rule("0000:42:00.0").num_vfs == 8
    assert rules.rule("0000:43:00.0").is_mixed
    assert rules.rule("0000:43:00.0").is_dynamic
    assert read(tmp_path, "vgpu_sizes = equal").rules.default.is_mixed is False


@pytest.mark.parametrize(
    ("line", "word"),
    [
        ("vgpu_sizes = both", "vgpu_sizes"),
        ("mig_instances = sometimes", "mig_instances"),
        ("sync_interval = often", "sync_interval"),
        ('device_spec = {"use": "gpu"}', "use must be one of"),
        ("device_spec = 0000:41:00.0", "one JSON object a line"),
    ],
)
def test_a_bad_value_stops_with_the_option_named(
    tmp_path: pathlib.Path, line: str, word: str
) -> None:
    with pytest.raises(errors.ConfigurationError) as caught:
        read(tmp_path, line)
    assert word in str(caught.value)
    assert line.partition(" = ")[2].strip('"') in str(caught.value)


def test_how_placement_is_kept_true(tmp_path: pathlib.Path) -> None:
    assert read(tmp_path).sync == conf.SyncSettings(
        interval=60, metrics_textfile="", metrics_port=0
    )
    assert read(
        tmp_path,
        "sync_interval = 0",
        "metrics_textfile = /var/lib/node_exporter/accel.prom",
        "metrics_port = 9111",
    ).sync == conf.SyncSettings(
        interval=0,
        metrics_textfile="/var/lib/node_exporter/accel.prom",
        metrics_port=9111,
    )


@pytest.mark.parametrize(
    ("line", "mend"),
    [
        ("sync_interval = -1", "greater than or equal to 0"),
        ("metrics_port = 65536", "less than or equal to 65535"),
    ],
)
def test_a_number_out_of_range_stops_too(
    tmp_path: pathlib.Path, line: str, mend: str
) -> None:
    with pytest.raises(errors.ConfigurationError) as caught:
        read(tmp_path, line)
    assert line.partition(" ")[0] in str(caught.value)
    assert mend in str(caught.value)


def test_what_the_documentation_writes_is_read() -> None:
    pages = pathlib.Path(__file__).parents[2] / "doc/source"
    lines = [
        line
        for page in sorted(pages.glob("*.rst"))
        for line in re.findall(r"device_spec = (\{.*\})", page.read_text())
    ]
    assert len(lines) >= 5
    assert len(policy.parse_policy(lines).rules) == len(lines)


def test_what_the_weigher_goes_by(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "nova.conf"
    path.write_text(
        "[nova_accel]\n"
        "accelerator_packing_weight_multiplier = -2.5\n"
        "accelerator_weigher_cache_seconds = 0\n"
    )
    parsed, _ = conf.parse_files([str(path)])

    assert conf.read_weigher_settings(parsed) == conf.WeigherSettings(
        packing=-2.5, cache_seconds=0
    )
    assert conf.WeigherSettings() == conf.read_weigher_settings(
        conf.parse_files([])[0]
    )
