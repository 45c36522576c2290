# SPDX-License-Identifier: Apache-2.0
"""New and different types of a host are found and merged."""

import dataclasses
import json
import pathlib

import pytest

from nova_accel import errors
from nova_accel.catalog import loader, vgpu_types
from nova_accel.cli import host_source
from tests.hosts import look
from tests.support import examples
from tools import refresh_catalog

TEXT = loader.text()
CATALOG = loader.load()
A40_5Z = refresh_catalog.HostType(
    name="A40-5Z",
    pci_id="10de:2235",
    framebuffer_mb=5120,
    limit=9,
    instance="",
    per_instance=1,
)


def all_seen() -> list[refresh_catalog.HostType]:
    """Return the types of a host with every GPU of the catalog."""
    return [
        refresh_catalog.HostType(
            name=vgpu_type.name,
            pci_id=":".join(gpu.pci_ids[0].split(":")[:2]),
            framebuffer_mb=vgpu_type.framebuffer_mb,
            limit=vgpu_type.limit,
            instance=vgpu_type.instance,
            per_instance=vgpu_type.per_instance,
        )
        for gpu in CATALOG.gpus()
        for vgpu_type in CATALOG.profiles_of(gpu.key)
        if gpu.pci_ids
    ]


def words(*seen: refresh_catalog.HostType) -> list[str]:
    return [
        f"{f.name} {f.text}" for f in refresh_catalog.compare(CATALOG, seen)
    ]


def test_types_of_the_catalog_change_nothing() -> None:
    assert len(all_seen()) > 400
    assert refresh_catalog.compare(CATALOG, all_seen()) == ()
    assert refresh_catalog.merge(TEXT, all_seen()) == TEXT


def test_the_catalog_is_rendered_as_it_is_stored() -> None:
    """A new type is a change of one line."""
    assert refresh_catalog.render(json.loads(TEXT)) == TEXT


def test_a_new_type_is_added_once() -> None:
    assert words(A40_5Z) == ["A40-5Z is new for A40"]
    merged = refresh_catalog.merge(TEXT, [A40_5Z])
    catalog = vgpu_types.parse(merged)
    assert refresh_catalog.compare(catalog, [A40_5Z]) == ()
    assert catalog.find("A40-5Z") == vgpu_types.CatalogVgpuType(
        name="A40-5Z", gpu="A40", framebuffer_mb=5120, limit=9
    )
    assert catalog.find("A40-8Q") == CATALOG.find("A40-8Q")
    assert refresh_catalog.merge(merged, [A40_5Z]) == merged


def test_a_new_series_of_a_known_size_has_its_places() -> None:
    host_type = dataclasses.replace(
        A40_5Z, name="A40-8Z", framebuffer_mb=8192, limit=6
    )
    before, after = (
        TEXT.splitlines(),
        refresh_catalog.merge(TEXT, [host_type]).splitlines(),
    )
    assert len(before) == len(after)
    assert len([1 for a, b in zip(before, after, strict=True) if a != b]) == 1
    vgpu_type = vgpu_types.parse("\n".join(after)).find("A40-8Z")
    like = CATALOG.find("A40-8Q")
    assert vgpu_type is not None
    assert like is not None
    assert vgpu_type.starts_mixed == like.starts_mixed
    assert vgpu_type.span == like.span


def test_a_new_type_in_a_gpu_instance() -> None:
    host_type = refresh_catalog.HostType(
        name="RTX Pro 6000 Blackwell DC-2-12A",
        pci_id="10de:2bb5",
        framebuffer_mb=12288,
        limit=8,
        instance="2g.48gb",
        per_instance=4,
    )
    vgpu_type = vgpu_types.parse(
        refresh_catalog.merge(TEXT, [host_type])
    ).find(host_type.name)
    assert vgpu_type is not None
    assert (vgpu_type.instance, vgpu_type.per_instance) == ("2g.48gb", 4)
    assert vgpu_type.limit == host_type.limit
    odd = dataclasses.replace(host_type, instance="5g.60gb")
    with pytest.raises(errors.MalformedError, match=r"5g\.60gb"):
        refresh_catalog.merge(TEXT, [odd])
    with pytest.raises(errors.MalformedError, match="vGPU type name"):
        refresh_catalog.merge(
            TEXT, [dataclasses.replace(A40_5Z, name="A16-5Z")]
        )


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"framebuffer_mb": 8000}, "framebuffer_mb is 8000 on the host, 8192"),
        ({"limit": 7}, "limit is 7 on the host, 6 here"),
        ({"instance": "1g.8gb"}, "instance is 1g.8gb on the host"),
        ({"per_instance": 2}, "per_instance is 2 on the host, 1 here"),
    ],
)
def test_a_contradiction_is_reported_and_not_merged(
    change: dict[str, object], text: str
) -> None:
    host_type = dataclasses.replace(
        refresh_catalog.HostType(name="A40-8Q", pci_id="10de:2235"),
        **change,  # type: ignore[arg-type]
    )
    (message,) = words(host_type)
    assert message.startswith("A40-8Q ")
    assert text in message
    assert refresh_catalog.merge(TEXT, [host_type]) == TEXT


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"framebuffer_mb": None}, "reports too few facts"),
        ({"limit": None}, "reports too few facts"),
        ({"pci_id": "10de:ffff"}, "write its row by hand"),
        # The name is of a type in a GPU instance, which is unknown.
        ({"name": "A30-1-3C", "instance": None}, "reports too few facts"),
    ],
)
def test_an_incomplete_type_is_not_added(
    change: dict[str, object], text: str
) -> None:
    host_type = dataclasses.replace(A40_5Z, **change)  # type: ignore[arg-type]
    assert text in words(host_type)[0]
    assert refresh_catalog.merge(TEXT, [host_type]) == TEXT


def test_different_geometry_is_reported() -> None:
    gpu = CATALOG.gpu("A100")
    assert gpu is not None
    assert refresh_catalog.compare_kinds(gpu, gpu.kinds) == ()
    assert refresh_catalog.compare_kinds(None, gpu.kinds) == ()
    two = next(kind for kind in gpu.kinds if kind.name == "2g.10gb")
    other = dataclasses.replace(two, starts=(0, 4), limit=2)
    unused = dataclasses.replace(two, name="2g.10gb+me.all")
    (difference,) = refresh_catalog.compare_kinds(gpu, [other, unused])
    assert difference.name == "A100 2g.10gb"
    assert "{0,4}:2 on the host" in difference.text
    assert "{0,2,4}:2 here" in difference.text


# -- the command ----------------------------------------------------------


@pytest.mark.parametrize("name", examples.share(look.NAMES))
def test_no_described_host_contradicts_the_catalog(
    tmp_path: pathlib.Path, name: str
) -> None:
    host, _ = host_source.open_host(str(look.make(name, tmp_path)))
    seen = tuple(refresh_catalog.read_seen(host))
    denied = [
        finding
        for finding in refresh_catalog.compare(CATALOG, seen)
        if "is new" not in finding.text
    ]
    assert denied == []


def test_the_command_writes_new_types(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = look.make("p100-mdev", tmp_path / "host")
    output = tmp_path / "new.json"
    arguments = ["--root", str(root), "--output", str(output)]
    assert refresh_catalog.main(arguments) == 1
    output_text = capsys.readouterr().out
    assert "P100-16Q is new for P100" in output_text
    catalog = vgpu_types.parse(output.read_text())
    assert catalog.find("P100-16Q") == vgpu_types.CatalogVgpuType(
        name="P100-16Q", gpu="P100", framebuffer_mb=16384, limit=1
    )
    assert CATALOG.find("P100-16Q") is None


def test_the_command_has_no_findings_on_a_known_host(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = look.make("t4-mdev", tmp_path)
    assert refresh_catalog.main(["--root", str(root)]) == 0
    assert capsys.readouterr().out == "10 types, 0 findings\n"


def test_the_command_names_bad_input(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert refresh_catalog.main(["--root", str(tmp_path / "none")]) == 2
    assert "does not exist" in capsys.readouterr().err
