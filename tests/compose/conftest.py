"""The engine, and a copy of the project in which the pages' commands run.

The tests run only inside the namespaces of `./taskw test:compose`. In any other run of pytest they
are not collected: they need root, some minutes and gigabytes.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.test_deploy_pages import blocks
from tests.chart.composition import ROOT
from tests.compose.engine import Engine, Parts
from tests.compose.images import ensure_images

collect_ignore_glob = [] if Parts.given() else ["test_*.py"]

PATIENCE_S = 120.0
# What `docker build` and `docker compose` read.
_SOURCES = ("compose.yaml", "pyproject.toml", "requirements.lock", "README.md", "LICENSE")
_FOLDERS = ("deploy", "libs", "services")


@dataclass(frozen=True, slots=True)
class Checkout:
    """The folder where a reader of the pages works."""

    folder: Path
    engine: Engine

    def shell(self, commands: str) -> str:
        """Run commands of a page, as a reader would."""
        print(f"\n$ {commands.strip()}", flush=True)
        return self.engine.run(["bash", "-euo", "pipefail", "-c", commands], folder=self.folder)

    def compose(self, *words: str, errors: bool = False) -> str:
        return self.engine.docker("compose", *words, folder=self.folder, errors=errors)

    def password(self, name: str) -> str:
        lines = (self.folder / ".env").read_text().splitlines()
        return dict(line.split("=", 1) for line in lines)[name]

    def containers(self) -> dict[str, dict[str, Any]]:
        """Every container by its service, as the engine describes it."""
        names = self.compose("--profile", "*", "ps", "--all", "--quiet").split()
        described = json.loads(self.engine.docker("inspect", *names)) if names else []
        service = "com.docker.compose.service"
        return {container["Config"]["Labels"][service]: container for container in described}

    def wait_until(self, what: str, true: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not true():
            if time.monotonic() > deadline:
                logs = self.compose("logs", "--tail", "20")
                raise AssertionError(f"not so after {PATIENCE_S:.0f} s: {what}\n{logs}")
            time.sleep(0.2)


def commands_with(page: list[str], text: str) -> str:
    """The first block of the page's commands that contains a text."""
    return next(block for block in page if text in block)


@pytest.fixture(scope="session")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    parts = Parts.given()
    assert parts
    engine = Engine(parts, tmp_path_factory.mktemp("engine"))
    try:
        engine.start()
        ensure_images(engine, tmp_path_factory.mktemp("images"))
        yield engine
    finally:
        engine.stop()


@pytest.fixture(scope="session")
def checkout(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    folder = tmp_path_factory.mktemp("checkout")
    for name in _SOURCES:
        shutil.copy(ROOT / name, folder)
    for name in _FOLDERS:
        ignored = shutil.ignore_patterns("__pycache__", "node_modules")
        shutil.copytree(ROOT / name, folder / name, ignore=ignored)
    return Checkout(folder, engine)


@pytest.fixture(scope="session")
def page() -> list[str]:
    """The commands of the page on Compose, block by block."""
    return blocks("docs/deploy-docker.md", "sh")
