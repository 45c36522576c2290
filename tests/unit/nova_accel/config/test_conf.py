# SPDX-License-Identifier: Apache-2.0
"""Options are parsed from files as operators write them."""

import pathlib
import re

import pytest
from oslo_config import cfg

from nova_accel import errors
from nova_accel.config import conf, conf_options, policy
from nova_accel.discovery import nova_conf

NUMBERS = [
    option.dest
    for option in (*conf_options.OPTIONS, *conf_options.SCHEDULER_OPTIONS)
    if isinstance(option, cfg.IntOpt | cfg.FloatOpt)
]


def read(tmp_path: pathlib.Path, *lines: str) -> conf.Settings:
    path = tmp_path / "nova.conf"
    path.write_text("\n".join(["[nova_accel]", *lines]) + "\n")
    return nova_conf.read_files([str(path)])


def test_defaults_change_no_mode(tmp_path: pathlib.Path) -> None:
    settings = read(tmp_path)
    assert settings.rules == policy.DeviceRules()
    assert settings.rules.rule("0000:41:00.0").is_mixed is None
    assert settings.root == "/"


def test_plain_options_apply_to_all_devices(tmp_path: pathlib.Path) -> None:
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
        ("mig_instances = sometimes", "mig_instances"),
        ("device_spec = 0000:41:00.0", "one JSON object a line"),
        ("sync_interval = -1", "write a whole number, 0 or more"),
        ("program_timeout = 99999", "write a whole number from 1 to"),
        ("state_dir = ~/accel", "write an absolute path"),
        ("licensed_series = Q,X", "write letters of Q, C, A, B"),
        ("license_dir = licenses", "write an absolute path"),
        ("state_dir = ", "write an absolute path"),
        ("state_dir = $state_dirs/accel", "write it without $"),
        ("state_dir = $pybasedir/accel", "write it without $"),
    ],
)
def test_a_bad_value_is_refused_with_its_option(
    tmp_path: pathlib.Path, line: str, word: str
) -> None:
    with pytest.raises(errors.ConfigurationError) as caught:
        read(tmp_path, line)
    assert line.partition(" ")[0] in str(caught.value)
    assert word in str(caught.value)
    assert line.partition(" = ")[2].strip('"') in str(caught.value)


def test_options_of_licences_are_read(tmp_path: pathlib.Path) -> None:
    lines = ("licensed_series = Q,B", "license_dir = /etc/nova/licenses")
    settings = read(tmp_path, *lines)
    assert settings.rules.default.series == {"Q", "B"}
    assert settings.license_dir == "/etc/nova/licenses"
    assert read(tmp_path).rules.default.series == frozenset()


def test_sync_options_are_read(tmp_path: pathlib.Path) -> None:
    assert read(tmp_path).sync == conf.SyncSettings(
        interval=60, metrics_textfile=""
    )
    assert read(
        tmp_path,
        "sync_interval = 0",
        "metrics_textfile = /var/lib/node_exporter/accel.prom",
    ).sync == conf.SyncSettings(
        interval=0,
        metrics_textfile="/var/lib/node_exporter/accel.prom",
    )


@pytest.mark.parametrize("option", NUMBERS)
def test_an_empty_number_is_refused(
    tmp_path: pathlib.Path, option: str
) -> None:
    path = tmp_path / "nova.conf"
    path.write_text(f"[nova_accel]\n{option} =\n")
    parsed = cfg.ConfigOpts()
    parsed([], default_config_files=[str(path)], default_config_dirs=[])
    with pytest.raises(errors.ConfigurationError) as caught:
        conf.read_settings(parsed)
        conf.read_weigher_settings(parsed)
    assert str(caught.value).startswith(
        f"{path} [nova_accel] {option} = (empty): write a"
    )


def test_a_state_dir_below_that_of_nova_is_read(
    tmp_path: pathlib.Path,
) -> None:
    path = tmp_path / "nova.conf"
    path.write_text("[nova_accel]\nstate_dir = $state_path/accel\n")
    settings = nova_conf.read_files([str(path)])
    assert settings.state_dir == "/var/lib/nova/accel"
    path.write_text(f"[DEFAULT]\nstate_path = /nova\n{path.read_text()}")
    settings = nova_conf.read_files([str(path)])
    assert settings.state_dir == "/nova/accel"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("sync_interval = often", "write a whole number, 0 or more"),
        ("vgpu_sizes = both", "write one of keep, equal, mixed"),
        ("state_dir = accel", "write an absolute path, as"),
        ('device_spec = {"use": "gpu"}', "use must be one of"),
    ],
)
def test_a_bad_value_is_refused_with_its_file(
    tmp_path: pathlib.Path, line: str, expected: str
) -> None:
    first, second = tmp_path / "first.conf", tmp_path / "second.conf"
    first.write_text("[nova_accel]\nsync_interval = 5\n")
    second.write_text(f"[NOVA_ACCEL]\n{line}\n")
    with pytest.raises(errors.ConfigurationError) as caught:
        nova_conf.read_files([str(first), str(second)])
    message = str(caught.value)
    assert message.startswith(f"{second} [nova_accel] {line}: {expected}")
    assert message.count("not valid") == 0


def test_a_bad_value_of_the_environment_is_refused_with_its_variable(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OS_NOVA_ACCEL__SYNC_INTERVAL", "often")
    with pytest.raises(errors.ConfigurationError) as caught:
        read(tmp_path, "sync_interval = 5")
    assert str(caught.value).startswith(
        "environment OS_NOVA_ACCEL__SYNC_INTERVAL"
        " [nova_accel] sync_interval = often: write a whole number"
    )


def test_device_spec_lines_of_the_documentation_are_valid() -> None:
    pages = pathlib.Path(__file__).parents[4] / "doc/source"
    lines = [
        line
        for page in sorted(pages.rglob("*.rst"))
        for line in re.findall(r"device_spec = (\{.*\})", page.read_text())
    ]
    assert len(lines) >= 5
    assert len(policy.parse_rules(lines).rules) == len(lines)


def test_weigher_options_are_read(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "nova.conf"
    path.write_text(
        "[nova_accel]\naccelerator_packing_weight_multiplier = -2.5\n"
    )
    parsed, _ = nova_conf.parse_files([str(path)])

    assert conf.read_weigher_settings(parsed) == conf.WeigherSettings(
        packing=-2.5
    )
    assert conf.WeigherSettings() == conf.read_weigher_settings(
        nova_conf.parse_files([])[0]
    )


def test_the_default_files_are_those_of_nova_compute(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """oslo.config prefers a user's own directory; the rules are the same."""
    place = tmp_path / ".nova"
    for number, name in enumerate(
        (
            "nova.conf",
            "nova-compute.conf",
            "nova.conf.d/2.conf",
            "nova.conf.d/10.conf",
            "nova.conf.d/3.conf~",
            "nova.conf.d/.4.conf",
            "nova-compute.conf.d/1.conf",
        )
    ):
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        line = f'device_spec = {{"max_slots": {number + 1}}}'
        (place / name).write_text(
            f"[nova_accel]\n{line}\nlive_migration_link = {number}\n"
        )
    monkeypatch.setenv("HOME", str(tmp_path))
    expected = cfg.ConfigOpts()
    expected([], project="nova", prog="nova-compute")
    paths = [str(place / name) for name in ("nova.conf", "nova-compute.conf")]
    monkeypatch.setattr(nova_conf, "CONFIG_FILES", paths)
    monkeypatch.setattr(
        nova_conf, "CONFIG_DIRS", [f"{path}.d" for path in paths]
    )
    files = nova_conf.find_default_files()
    assert len(files) == 5
    settings, nova = nova_conf.read_files(files), conf.read_settings(expected)
    assert settings.rules == nova.rules
    assert [rule.max_slots for rule in settings.rules.rules] == [1, 2, 4, 3, 7]
    assert settings.live_migration_link == nova.live_migration_link == 6


def test_no_file_is_found_where_there_is_none(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        nova_conf, "CONFIG_FILES", [str(tmp_path / "nova.conf")]
    )
    monkeypatch.setattr(
        nova_conf, "CONFIG_DIRS", [str(tmp_path / "nova.conf.d")]
    )
    assert nova_conf.find_default_files() == ()
