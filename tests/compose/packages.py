"""The programs of the engine: Docker from Debian's packages, Compose built from its Go module.

Both are unpacked into the user's cache, and installed nowhere: an installed engine would start on
its own, and change the machine's network. Promises that an error names the package or the module
that can't be had.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

from headrace.testing.fetched import FetchError, cached, fetch

COMPOSE = "v2.40.3"
_COMPOSE_MODULE = f"github.com/docker/compose/v2@{COMPOSE}"
# Prometheus and busybox are for the stand-ins of the images that only a registry of images has.
_PACKAGES = (
    "busybox-static",
    "containerd",
    "debootstrap",
    "docker.io",
    "iptables",
    "prometheus",
    "runc",
    "slirp4netns",
    "tini",
)
# Those that a small Debian lacks.
_LIBRARIES = (
    "libdevmapper1.02.1",
    "libglib2.0-0",
    "libip4tc2",
    "libip6tc2",
    "libmnl0",
    "libnetfilter-conntrack3",
    "libnfnetlink0",
    "libnftnl11",
    "libseccomp2",
    "libslirp0",
    "libxtables12",
)
_BUILD_TIMEOUT_S = 1800.0


def engine_folder() -> Path:
    """The folder into which the engine's packages are unpacked."""
    return cached("docker-engine-bookworm", _unpack)


def compose_program() -> Path:
    """Docker Compose, built if necessary: two minutes or more, and 1.5 GB that are removed again."""
    return cached(f"docker-compose-{COMPOSE}", _build_compose) / "docker-compose"


def _unpack(folder: Path) -> None:
    downloads = folder / "packages"
    downloads.mkdir()
    # As root, apt downloads as another user, who may not write to every folder.
    apt = ["apt-get", "-o", "APT::Sandbox::User=root", "-qq"]
    fetch([*apt, "update"], downloads)
    fetch([*apt, "download", *_PACKAGES, *_LIBRARIES], downloads)
    for package in sorted(downloads.iterdir()):
        fetch(["dpkg-deb", "-x", package, folder], folder)
    shutil.rmtree(downloads)
    # An installation would create these links.
    for name in ("iptables", "ip6tables"):
        (folder / "usr/sbin" / name).symlink_to("xtables-nft-multi")


def _build_compose(folder: Path) -> None:
    work = folder / "work"
    environment = {
        **os.environ,
        "GOMODCACHE": str(work / "modules"),
        "GOCACHE": str(work / "cache"),
        "GOFLAGS": "-modcacherw -buildvcs=false",
        "CGO_ENABLED": "0",
    }
    work.mkdir()
    said = _go(["mod", "download", "-json", _COMPOSE_MODULE], work, environment)
    # A module with `replace` directives can't be installed by name.
    source = work / "source"
    shutil.copytree(json.loads(said)["Dir"], source)
    target = folder / "docker-compose"
    _go(["build", "-trimpath", "-ldflags", "-s -w", "-o", target, "./cmd"], source, environment)
    shutil.rmtree(work)


def _go(command: list[str | Path], folder: Path, environment: dict[str, str]) -> str:
    go = shutil.which("go")
    if go is None:
        raise FetchError("Go is not installed", remedy="Install Go, which builds Docker Compose.")
    done = subprocess.run(
        [go, *command],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=_BUILD_TIMEOUT_S,
        check=False,
    )
    if done.returncode != 0:
        said = " ".join((done.stderr + done.stdout).strip().splitlines()[-3:])
        raise FetchError(f"Go can't build Docker Compose: {said}")
    return done.stdout
