"""Random rows, frames and commands for an extension that was built with sanitizers; run by a test.

python -m tests.property.accelerator.sanitized EXTENSION SECONDS SEED
"""

from __future__ import annotations

import random
import struct
import sys
import time
from importlib.machinery import ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_file_location

NAME = "headrace.accelerator._native"
COLUMNS_MAX = 20


def load(extension: str) -> None:
    """The extension takes the place of the installed one."""
    spec = spec_from_file_location(NAME, extension, loader=ExtensionFileLoader(NAME, extension))
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.modules[NAME] = module


def value(chance: random.Random) -> bytes:
    kind = chance.randrange(7)
    if kind == 0:
        return b"n"
    if kind == 1:
        return b"u"
    text = (
        str(chance.getrandbits(chance.randrange(70))).encode(),
        chance.randbytes(chance.randrange(80)),
        'aé\U0001f600"\\\n'[chance.randrange(6) :].encode() * chance.randrange(200),
        b"2026-01-31 12:00:00.5+00"[: chance.randrange(25)],
        chance.choice((b"t", b"f", b"-1", b"1.5", b"infinity")),
    )[kind - 2]
    # Some say that they are longer or shorter than they are.
    size = len(text) + (chance.randrange(-3, 4) if chance.random() < 0.05 else 0)
    return b"t" + struct.pack(">I", size & 0xFFFFFFFF) + text


def row(chance: random.Random, count: int) -> bytes:
    return struct.pack(">H", count) + b"".join(value(chance) for _ in range(count))


def damaged(chance: random.Random, message: bytes) -> bytes:
    if chance.random() < 0.7:
        return message
    at = chance.randrange(len(message) + 1)
    return (
        message[:at] + chance.randbytes(chance.randrange(4)) + message[at + chance.randrange(4) :]
    )


def main() -> None:
    load(sys.argv[1])
    # Only now: these import the extension.
    from tests.property.accelerator import fuzzing

    chance = random.Random(int(sys.argv[3]))
    until = time.monotonic() + float(sys.argv[2])
    rounds = 0
    while time.monotonic() < until or rounds < 50:
        rounds += 1
        count = chance.randrange(COLUMNS_MAX)
        messages = []
        for _ in range(chance.randrange(1, 30)):
            head = chance.choice((b"I", b"U")) + struct.pack(">I", chance.choice((1, 2)))
            old = b"O" + row(chance, count) if chance.random() < 0.3 else b""
            messages.append(damaged(chance, head + old + b"N" + row(chance, count)))
        fuzzing.round_of(chance, count, messages)
    print(f"{rounds} rounds")


if __name__ == "__main__":
    main()
