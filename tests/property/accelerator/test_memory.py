"""The accelerator reads no byte that is not its own, and keeps nothing."""

from __future__ import annotations

import gc
import os
import random
import resource
import shutil
import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

from headrace.jetstream.publishing.message import NO_HEADERS
from headrace.lsn import Position
from headrace.publisher.published_event import PublishedEvent
from tests.property.accelerator import sanitized
from tests.property.accelerator.fuzzing import round_of

ROOT = Path(__file__).parents[3]
SECONDS = os.environ.get("FUZZ_SECONDS", "10")
SEED = os.environ.get("FUZZ_SEED", "1")
GROWTH_KIB_MAX = 4096


def build_command(built: Path, *more: str) -> list[str]:
    """As the wheel's build compiles it."""
    spec = spec_from_file_location("hook", ROOT / "deploy/release/accelerator.py")
    assert spec is not None
    assert spec.loader is not None
    hook = module_from_spec(spec)
    spec.loader.exec_module(hook)
    found: list[str] = hook.command(hook.SOURCE, str(built), *more)
    return found


@pytest.mark.skipif(
    sys.platform != "linux", reason="the sanitizers' library is preloaded, on Linux"
)
def test_under_sanitizers_nothing_is_found(tmp_path: Path) -> None:
    built = tmp_path / "_native.abi3.so"
    sanitize = ("-g", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-Werror")
    subprocess.run(build_command(built, *sanitize), cwd=ROOT, check=True)
    compiler = shutil.which("cc")
    assert compiler is not None
    library = subprocess.check_output([compiler, "-print-file-name=libasan.so"], text=True).strip()
    environment = {
        **os.environ,
        "LD_PRELOAD": library,
        # Python leaves its own constants when it ends.
        "ASAN_OPTIONS": "detect_leaks=0",
        # Otherwise Python's allocator hides what is read behind an object's end.
        "PYTHONMALLOC": "malloc",
    }
    module = "tests.property.accelerator.sanitized"
    ended = subprocess.run(
        [sys.executable, "-m", module, str(built), SECONDS, SEED],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-5000:]
    assert "rounds" in ended.stdout


def test_no_reference_and_no_memory_is_left() -> None:
    def rounds(count: int) -> None:
        chance = random.Random(2)
        for _ in range(count):
            messages = [
                b"I\0\0\0\1N" + sanitized.row(chance, 5),
                sanitized.damaged(chance, b"I\0\0\0\1N" + sanitized.row(chance, 5)),
            ]
            round_of(chance, 5, messages * 10)

    constants = (NO_HEADERS, PublishedEvent, Position, None, True, False)
    rounds(50)
    gc.collect()
    before = [sys.getrefcount(one) for one in constants]
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    rounds(400)
    gc.collect()
    after = [sys.getrefcount(one) for one in constants]
    # Others use them too, a few at a time; a lost reference in each of 16,000 rows would show.
    assert max(abs(one - two) for one, two in zip(before, after, strict=True)) < 400
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - used < GROWTH_KIB_MAX
