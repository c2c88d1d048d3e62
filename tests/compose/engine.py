"""A Docker engine with its own data, socket and network, started and ended by its process.

It runs inside the namespaces that `tests.compose.__main__` creates. Its network reaches the outside
through slirp4netns, an ordinary process, so that the machine needs neither a rule of the firewall
nor forwarding. Promises that an engine which does not start is an error that quotes who refused.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import platform
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.embedded.process import tied

CGROUP = "headrace-compose"
START_TIMEOUT_S = 90.0
STOP_TIMEOUT_S = 40.0
COMMAND_TIMEOUT_S = 1800.0
CACHE_MAX = "3gb"
_VARIABLE = "HEADRACE_COMPOSE_ENGINE"
# slirp4netns answers names here, as the machine's own resolver would.
_RESOLVER = "10.0.2.3"


class EngineError(AssertionError):
    """The engine, or a command to it, failed."""


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of an engine, handed to the process inside the namespaces."""

    tools: Path
    compose: Path
    data: Path
    host_network: int
    host_mounts: int

    def environ(self) -> dict[str, str]:
        values = [self.tools, self.compose, self.data, self.host_network, self.host_mounts]
        return {_VARIABLE: json.dumps([str(value) for value in values])}

    @classmethod
    def given(cls) -> Parts | None:
        """The parts that the environment names, if the process is inside the namespaces."""
        if _VARIABLE not in os.environ:
            return None
        tools, compose, data, network, mounts = json.loads(os.environ[_VARIABLE])
        return cls(Path(tools), Path(compose), Path(data), int(network), int(mounts))


class Engine:
    """One engine, for one run."""

    def __init__(self, parts: Parts, folder: Path) -> None:
        self.parts = parts
        self._folder = folder
        self._socket = folder / "docker.sock"
        self._log = folder / "dockerd.log"
        self._processes: list[subprocess.Popen[bytes]] = []
        plugins = folder / "config/cli-plugins"
        plugins.mkdir(parents=True)
        (plugins / "docker-compose").symlink_to(parts.compose)

    @property
    def environment(self) -> dict[str, str]:
        """For commands that use the engine."""
        programs = [self.parts.tools / "usr/sbin", self.parts.tools / "usr/bin", os.environ["PATH"]]
        return {
            "PATH": ":".join(map(str, programs)),
            "HOME": os.environ.get("HOME", "/root"),
            "DOCKER_HOST": f"unix://{self._socket}",
            "DOCKER_CONFIG": str(self._folder / "config"),
            "DOCKER_BUILDKIT": "1",
            "BUILDKIT_PROGRESS": "plain",
        }

    def start(self) -> None:
        """Connect the network, then start the engine."""
        self._connect_network()
        arguments = {
            "--data-root": self.parts.data / "data",
            "--exec-root": self._folder / "run",
            "--pidfile": self._folder / "pid",
            "--host": f"unix://{self._socket}",
            "--cgroup-parent": f"/{CGROUP}",
        }
        dockerd = str(self.parts.tools / "usr/sbin/dockerd")
        command = [dockerd, *(str(word) for pair in arguments.items() for word in pair)]
        self._spawn(command, self._log)
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self._answers():
            if self._processes[-1].poll() is not None or time.monotonic() > deadline:
                raise EngineError(f"dockerd does not start. It says:\n{self._last_words()}")
            time.sleep(0.2)
        self.remove_everything()

    def stop(self) -> None:
        """Remove what ran, and end the engine."""
        try:
            if self._answers():
                self.remove_everything()
                # Each change of the sources adds steps.
                self.docker("builder", "prune", "--force", "--keep-storage", CACHE_MAX)
        finally:
            for process in reversed(self._processes):
                process.terminate()
                try:
                    process.wait(STOP_TIMEOUT_S)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()

    def remove_everything(self) -> None:
        """Remove containers, volumes and networks, also those of a run that was killed."""
        if containers := self.docker("ps", "--all", "--quiet").split():
            self.docker("rm", "--force", "--volumes", *containers)
        if volumes := self.docker("volume", "ls", "--quiet").split():
            self.docker("volume", "rm", "--force", *volumes)
        self.docker("network", "prune", "--force")
        # Images that a newer one of the same name has replaced.
        self.docker("image", "prune", "--force")

    def docker(self, *words: str | Path, folder: Path | None = None, errors: bool = False) -> str:
        """The output of a docker command; `EngineError` with what it printed if it fails."""
        return self.run(["docker", *map(str, words)], folder=folder, errors=errors)

    def run(
        self,
        command: Sequence[str],
        *,
        folder: Path | None = None,
        more: Mapping[str, str] | None = None,
        errors: bool = False,
    ) -> str:
        """The output of any command that uses the engine; with `errors`, of both kinds."""
        done = subprocess.run(
            command,
            cwd=folder or self._folder,
            env={**self.environment, **(more or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT if errors else subprocess.PIPE,
            timeout=COMMAND_TIMEOUT_S,
            check=False,
        )
        if done.returncode != 0:
            printed = (done.stdout + (done.stderr or b"")).decode(errors="replace")[-6000:]
            if self._processes[-1].poll() is not None:
                printed += f"\ndockerd has ended. It says:\n{self._last_words()}"
            raise EngineError(f"{' '.join(command)} ended with {done.returncode}:\n{printed}")
        return done.stdout.decode()

    def cpu_seconds(self, container: str) -> float:
        """The CPU time of a container since its start, including its health checks."""
        stats = self._asked(f"/containers/{container}/stats?stream=false&one-shot=true")
        return float(stats["cpu_stats"]["cpu_usage"]["total_usage"]) / 1e9

    def _asked(self, path: str) -> Any:
        with contextlib.closing(_SocketConnection(self._socket)) as connection:
            connection.request("GET", path)
            return json.loads(connection.getresponse().read())

    def _answers(self) -> bool:
        try:
            return "ApiVersion" in self._asked("/version")
        except OSError:
            return False

    def _connect_network(self) -> None:
        # Another engine's containerd would be found in /run.
        _call("mount", "-t", "tmpfs", "tmpfs", "/run")
        resolver = self._folder / "resolv.conf"
        resolver.write_text(f"nameserver {_RESOLVER}\n")
        Path("/etc/resolv.conf").resolve().parent.mkdir(parents=True, exist_ok=True)
        Path("/etc/resolv.conf").resolve().touch()
        _call("mount", "--bind", str(resolver), "/etc/resolv.conf")
        network = os.open("/proc/self/ns/net", os.O_RDONLY)
        ready, written = os.pipe()
        host = (self.parts.host_network, self.parts.host_mounts)
        command = [
            str(shutil.which("nsenter")),
            f"--net=/proc/self/fd/{host[0]}",
            f"--mount=/proc/self/fd/{host[1]}",
        ]
        command += [str(self.parts.tools / "usr/bin/slirp4netns"), "--configure", "--mtu=1400"]
        command += ["--disable-host-loopback", f"--ready-fd={written}", "--netns-type=path"]
        log = self._folder / "slirp4netns.log"
        self._spawn([*command, f"/proc/self/fd/{network}", "tap0"], log, (network, written, *host))
        os.close(written)
        os.close(network)
        with open(ready, "rb") as pipe:  # noqa: PTH123  # a descriptor
            if not pipe.read(1):
                raise EngineError(f"slirp4netns does not start. It says:\n{log.read_text()}")

    def _spawn(self, command: Sequence[str], log: Path, fds: tuple[int, ...] = ()) -> None:
        place = f"lib/{platform.machine()}-linux-gnu"
        libraries = [self.parts.tools / "usr" / place, self.parts.tools / place]
        with log.open("ab") as output:
            self._processes.append(
                subprocess.Popen(
                    tied(command, signal.SIGTERM),
                    env={
                        **self.environment,
                        "LD_LIBRARY_PATH": ":".join(map(str, libraries)),
                        "XTABLES_LIBDIR": str(libraries[0] / "xtables"),
                    },
                    stdout=output,
                    stderr=output,
                    pass_fds=fds,
                )
            )

    def _last_words(self) -> str:
        lines = self._log.read_text(errors="replace").splitlines()
        refusals = [line for line in lines if "level=info" not in line]
        return "\n".join((refusals or lines)[-8:])


class _SocketConnection(http.client.HTTPConnection):
    """HTTP over the engine's socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=30)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


def _call(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise EngineError(f"{' '.join(command)} ended with {done.returncode}: {done.stderr}")
