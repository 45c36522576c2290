# SPDX-License-Identifier: Apache-2.0
"""The container file adds the library to an image.

No image of Kolla is downloaded: a substitute has the layout that
``openstack-base`` and ``nova-base`` of Kolla have on Debian (the virtual
environment, the constraints, ``python3-libvirt`` of the distribution, the
user). buildah builds without a daemon.
"""

import functools
import hashlib
import os
import re
import resource
from collections.abc import Iterator

import pytest

from tests.functional import test_activation
from tests.functional.contrib import roots
from tests.functional.contrib.packages import package_root
from tests.unit.docs import pages

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(os.geteuid() != 0, reason="mounts file systems"),
]

_PAGE = pages.MANUAL / "install/index.rst"
_CONSTRAINTS = roots.REPOSITORY / "tests/constraints.txt"
_VENV = "/var/lib/kolla/venv"
_SUBSTITUTE = f"""\
FROM scratch
ADD image.tar /
ENV PATH={_VENV}/bin:{roots.PATH}
ENV PIP_CERT=/run/host/ca-certificates.crt
USER nova
"""
_BUILDAH = (
    *("buildah", "--root", "/mnt/containers", "--runroot", "/run/containers"),
)
_INSTALL = ("apt-get", "install")
# buildah raises these limits, which a container's root can't.
_, _FILES = resource.getrlimit(resource.RLIMIT_NOFILE)
_, _PROCESSES = resource.getrlimit(resource.RLIMIT_NPROC)
_LIMITS = (
    f"--ulimit=nofile={_FILES}:{_FILES}",
    f"--ulimit=nproc={_PROCESSES}:{_PROCESSES}",
)
#: for buildah build and buildah run
_OPTIONS = ("--isolation", "chroot", "--volume", "/run/host:/run/host:ro")


@pytest.fixture(scope="module")
def commands() -> list[list[str]]:
    """Return two commands of the install page: of the wheel, of the image."""
    lines = list(pages.commands(_PAGE.read_text()))
    wheel = next(line for line in lines if line[0] == "python3")
    build = next(line for line in lines if line[0] == "buildah")
    return [wheel, build]


@pytest.fixture(scope="module")
def builder(commands: list[list[str]]) -> Iterator[package_root.PackageRoot]:
    """Return a root with a checkout, its wheel, and the substitute image.

    buildah is installed when the image's files are packed.
    """
    with package_root.PackageRoot("trixie") as root:
        root.copy_commit()
        root.run(*_INSTALL, "passwd", "python3-libvirt", "python3-venv")
        root.run("useradd", "--system", "nova")
        root.run("python3", "-m", "venv", "--system-site-packages", _VENV)
        # Kolla's have the form NAME===VERSION
        constraints = re.sub(
            r"^(\S+?)==",
            r"\1===",
            _CONSTRAINTS.read_text(),
            flags=re.MULTILINE,
        )
        (root.files / "upper-constraints.txt").write_text(constraints)
        root.run(
            "install",
            "-D",
            "-t",
            "/requirements",
            "/mnt/upper-constraints.txt",
        )
        python = f"{_VENV}/bin/python3"
        pip = (python, "-m", "pip", "install", "--no-cache-dir")
        root.run(*pip, "-c", "/requirements/upper-constraints.txt", "nova")
        wheel, _ = commands
        root.run(python, *wheel[1:], directory="/mnt/source")
        root.run(
            "tar", "--one-file-system", "-C", "/", "-cf", "/mnt/image.tar", "."
        )
        root.run(*_INSTALL, "buildah", "netavark")
        (root.files / "Containerfile").write_text(_SUBSTITUTE)
        root.run(*_BUILDAH, "build", "-t", "substitute", "/mnt")
        yield root


@pytest.fixture(scope="module")
def image(
    builder: package_root.PackageRoot, commands: list[list[str]]
) -> package_root.PackageRoot:
    """Return the root with a container of the built image."""
    _, build = commands
    line = re.sub(r"IMAGE=\S+", "IMAGE=substitute", " ".join(build[2:]))
    line = re.sub(r"-t \S+", "-t with-library", line)
    (wheel,) = builder.files.glob("source/dist/*.whl")
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    line = re.sub(r"(WHEEL_SHA256=)\S+", rf"\g<1>{digest}", line)
    words = (*_BUILDAH, "build", *_LIMITS, *_OPTIONS, *line.split())
    builder.run(*words, directory="/mnt/source")
    builder.run(
        *_BUILDAH, "from", *_LIMITS, "--name", "container", "with-library"
    )
    return builder


def run(root: package_root.PackageRoot, *command: str) -> str:
    """Run a command in a container of the image."""
    options = (*_OPTIONS, "--volume", "/mnt:/mnt:ro")
    return root.run(*_BUILDAH, "run", *options, "container", "--", *command)


def test_a_wheel_without_its_hash_is_refused(
    builder: package_root.PackageRoot, commands: list[list[str]]
) -> None:
    _, build = commands
    line = re.sub(r"IMAGE=\S+", "IMAGE=substitute", " ".join(build[2:]))
    for text, reason in (
        (re.sub(r"--build-arg WHEEL_SHA256=\S+", "", line), "is missing"),
        (re.sub(r"(SHA256=)\S+", r"\g<1>" + "0" * 64, line), "DO NOT MATCH"),
    ):
        words = (*_BUILDAH, "build", *_LIMITS, *_OPTIONS, *text.split())
        done = builder.execute(*words, directory="/mnt/source")
        assert done.returncode
        assert reason in done.stdout + done.stderr


def test_the_image_keeps_its_user(image: package_root.PackageRoot) -> None:
    assert run(image, "id", "-un").strip() == "nova"


def test_libvirt_is_that_of_the_distribution(
    image: package_root.PackageRoot,
) -> None:
    script = "import libvirtmod; print(libvirtmod.__file__)"
    output = run(image, "python3", "-c", script)
    assert output.startswith("/usr/lib/python3/dist-packages/")


@pytest.mark.parametrize(
    "text",
    [test_activation.BY_NAME, test_activation.BY_SOURCE],
    ids=["compute_driver", "config_source"],
)
def test_nova_compute_of_the_image_loads_the_driver(
    image: package_root.PackageRoot, text: str
) -> None:
    loaded = package_root.find_loaded_driver(
        image.files, functools.partial(run, image), text
    )
    assert loaded == test_activation.LOADED


def test_no_file_of_the_build_is_left(image: package_root.PackageRoot) -> None:
    assert not run(image, "ls", "-A", "/tmp").strip()  # noqa: S108
