"""The manifests that the chart renders, by `helm template`."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.chart.composition import HAS_LOCKED_HELM, ROOT

CHART = ROOT / "deploy/helm/headrace"
SETS = sorted((CHART / "ci").glob("*.yaml"))


def helm(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = shutil.which("helm", path=str(ROOT / ".venv/bin")) or shutil.which("helm")
    if command is None and not HAS_LOCKED_HELM:
        pytest.skip("the lock has no helm for this platform, and no other is installed")
    assert command is not None
    return subprocess.run(
        [command, *arguments], capture_output=True, text=True, timeout=120, check=False
    )


@cache
def rendered(values: Path) -> tuple[dict[str, Any], ...]:
    done = helm("template", "headrace", CHART, "--namespace", "data", "-f", values)
    assert done.returncode == 0, done.stderr
    return tuple(document for document in yaml.load_all(done.stdout, yaml.CSafeLoader) if document)


def of_kind(values: Path, *kinds: str) -> Iterator[dict[str, Any]]:
    return (manifest for manifest in rendered(values) if manifest["kind"] in kinds)


def pods(values: Path) -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Each container of each pod template: its manifest's name, the pod, the container."""
    for manifest in of_kind(values, "Deployment", "StatefulSet", "Job", "CronJob", "Pod"):
        spec = manifest["spec"]
        template = spec.get("jobTemplate", {}).get("spec", spec).get("template")
        pod = template["spec"] if template else spec
        name = manifest["metadata"]["name"]
        yield name, pod, pod["containers"][0]
        for container in pod.get("initContainers", []):
            yield f"{name}/{container['name']}", pod, container


def with_values(*pairs: str) -> subprocess.CompletedProcess[str]:
    chosen = [part for pair in pairs for part in ("--set", pair)]
    return helm("template", "headrace", CHART, "-f", CHART / "ci/minimal.yaml", *chosen)


def container_of(values: Path, name: str) -> dict[str, Any]:
    return next(container for full, _, container in pods(values) if full == f"headrace-{name}")


def values_of(container: dict[str, Any]) -> dict[str, str]:
    return {entry["name"]: entry["value"] for entry in container["env"] if "value" in entry}


def secrets_of(container: dict[str, Any]) -> dict[str, str]:
    """The secret of each variable that is one."""
    return {
        entry["name"]: entry["valueFrom"]["secretKeyRef"]["name"]
        for entry in container["env"]
        if "valueFrom" in entry
    }


def of_name(kind: str, name: str, values: Path = CHART / "ci/everything.yaml") -> dict[str, Any]:
    return next(m for m in of_kind(values, kind) if m["metadata"]["name"] == name)
