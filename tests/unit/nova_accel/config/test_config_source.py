# SPDX-License-Identifier: Apache-2.0
"""oslo.config opens the config source as services do."""

import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from oslo_config import cfg

from nova_accel.config import config_source

NAMED = """
[DEFAULT]
config_source = accel

[accel]
driver = nova_accel
"""


@pytest.fixture(autouse=True)
def _meta_path() -> Iterator[None]:
    before = list(sys.meta_path)
    for finder in finders():  # of an earlier test that read nova.conf
        sys.meta_path.remove(finder)
    load_driver("log what earlier tests have deferred")
    yield
    sys.meta_path[:] = before


def parse(directory: Path, text: str) -> cfg.ConfigOpts:
    path = directory / "nova.conf"
    path.write_text(text)
    conf = cfg.ConfigOpts()
    for name in ("compute_driver", "state_path"):
        conf.register_opt(cfg.StrOpt(name))
    conf.register_opt(
        cfg.StrOpt("compute_driver", default="own"), group="other"
    )
    conf(["--config-file", str(path)])
    return conf


def finders() -> list[config_source.ShimFinder]:
    return [
        finder
        for finder in sys.meta_path
        if isinstance(finder, config_source.ShimFinder)
    ]


def test_the_source_supplies_the_compute_driver_only(tmp_path: Path) -> None:
    conf = parse(tmp_path, NAMED)
    assert conf.compute_driver == "accel.AccelLibvirtDriver"
    assert conf.state_path is None
    assert conf["other"].compute_driver == "own"
    location = conf.get_location("compute_driver")
    assert location is not None
    assert location.detail == "nova_accel.config.config_source"


def test_nova_conf_precedes_the_source(tmp_path: Path) -> None:
    text = NAMED.replace(
        "[DEFAULT]", "[DEFAULT]\ncompute_driver = libvirt.LibvirtDriver"
    )
    assert parse(tmp_path, text).compute_driver == "libvirt.LibvirtDriver"


def test_a_second_open_installs_no_second_finder(tmp_path: Path) -> None:
    parse(tmp_path, NAMED)
    parse(tmp_path, NAMED)
    assert len(finders()) == 1
    assert sys.meta_path[-1] is finders()[0]


def test_without_config_source_nothing_is_installed(tmp_path: Path) -> None:
    assert parse(tmp_path, "[DEFAULT]\n").compute_driver is None
    assert finders() == []


def load_driver(message: str) -> None:
    """Log as Nova's loader of compute drivers does, once the log is open."""
    logging.getLogger("nova.virt.driver").error(message)


@pytest.mark.parametrize(
    ("section", "reason"),
    [
        ("[accel]\ndriver = nova_acel", "found 'nova_acel'"),
        ("[acel]\ndriver = nova_accel", "no 'driver' is set"),
    ],
)
def test_the_reason_of_a_misspelt_driver_is_logged(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    section: str,
    reason: str,
) -> None:
    parse(tmp_path, f"[DEFAULT]\nconfig_source = accel\n{section}\n")
    parse(tmp_path, f"[DEFAULT]\nconfig_source = accel\n{section}\n")
    caplog.clear()
    for _ in range(2):
        load_driver("Compute driver option required, but not specified")
    first, second, third = caplog.records
    assert first.name == "nova_accel.config.config_source"
    assert first.levelname == "ERROR"
    assert reason in first.getMessage()
    assert second.name == third.name == "nova.virt.driver"


def test_another_compute_driver_is_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(2):
        parse(
            tmp_path,
            NAMED.replace(
                "[DEFAULT]", "[DEFAULT]\ncompute_driver = fake.FakeDriver"
            ),
        )
    for _ in range(2):
        load_driver("Loading compute driver 'fake.FakeDriver'")
    records = [r for r in caplog.records if r.name.startswith("nova_accel")]
    assert [r.levelname for r in records] == ["WARNING"]
    assert "compute_driver = fake.FakeDriver" in records[0].getMessage()


def test_the_librarys_compute_driver_is_no_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    parse(tmp_path, NAMED)
    load_driver("Loading compute driver 'accel.AccelLibvirtDriver'")
    names = {record.name for record in caplog.records}
    assert "nova_accel.config.config_source" not in names


def test_another_source_does_not_install_the_finder(tmp_path: Path) -> None:
    # oslo.config imports every installed source for this, also that of the
    # library. Nothing listens on port 9: the source can't be opened.
    conf = parse(
        tmp_path,
        "[DEFAULT]\nconfig_source = remote\n"
        "[remote]\ndriver = remote_file\nuri = http://127.0.0.1:9/nova\n",
    )
    assert conf.compute_driver is None
    assert finders() == []


def test_the_finder_finds_only_the_shim() -> None:
    config_source.install_finder()
    (finder,) = finders()
    assert finder.find_spec("nova.virt.libvirt", None) is None
    assert finder.find_spec("nova.virt.accelerated", None) is None
    spec = finder.find_spec("nova.virt.accel", None)
    assert spec is not None and spec.origin is not None
    shim = Path(spec.origin)
    assert shim.parts[-3:] == ("virt_hooks", "shim", "__init__.py")
    assert "AccelLibvirtDriver" in shim.read_text()


def test_opening_imports_neither_nova_nor_concurrency_libraries(
    tmp_path: Path,
) -> None:
    (tmp_path / "nova.conf").write_text(NAMED)
    script = (
        "import sys\n"
        "from oslo_config import cfg\n"
        "before = set(sys.modules)\n"
        "conf = cfg.ConfigOpts()\n"
        "conf(['--config-file', 'nova.conf'])\n"
        "new = {name.partition('.')[0] for name in"
        " set(sys.modules) - before}\n"
        "assert 'nova_accel' in new, new\n"
        "print(*sorted(new & {'nova', 'eventlet', 'futurist', 'greenlet',"
        " 'virt_hooks', 'filters', 'placement_sync', 'libvirt',"
        " 'openstack'}))\n"
    )
    done = subprocess.run(  # noqa: S603 - our own interpreter and script
        [sys.executable, "-c", script],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONWARNINGS": ""},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == ""


def test_the_source_has_no_options() -> None:
    assert (
        config_source.ConfigSourceDriver().list_options_for_discovery() == []
    )
