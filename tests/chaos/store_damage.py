"""Damage to JetStream's store while its server is down: flipped bits, an older store, a deleted
stream, no store at all.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.testing import damage as files

if TYPE_CHECKING:
    from tests.chaos.world import World

_KINDS = (
    "a payload",
    "a payload, without the index",
    "a length",
    "a payload",
    "a length, without the index",
    "an older store",
    "a payload, without the index",
    "a deleted stream",
    "a lost store",
)


def damage(world: World, chance: float) -> str:
    """Do it; returns a description."""
    store = world.nats.folder / "jetstream"
    kind = _KINDS[int(chance * len(_KINDS))]
    if kind == "a lost store":
        _emptied(store)
        return kind
    if not any(store.rglob("streams/CDC/msgs")):
        return "nothing, the stream does not exist yet"
    if kind == "a deleted stream":
        shutil.rmtree(files.folder_of(store).parent)
        return kind
    if kind == "an older store":
        return _older(store, world.folder / "older")
    return _flipped(store, kind, chance)


def _older(store: Path, copy: Path) -> str:
    """The store as it was the last time, and a copy for the next time."""
    if not copy.exists():
        shutil.copytree(store, copy)
        return "nothing, a copy of the store was taken"
    _emptied(store)
    shutil.copytree(copy, store, dirs_exist_ok=True)
    shutil.rmtree(copy)
    return "an older store"


def _emptied(store: Path) -> None:
    for path in store.iterdir():
        if path.is_dir():
            shutil.rmtree(path)


def _flipped(store: Path, kind: str, chance: float) -> str:
    blocks = files.blocks(store)
    block = blocks[int(chance * 1000) % len(blocks)]
    found = list(files.records(block))
    if not found:
        return "nothing, the block is empty"
    record = found[int(chance * 1_000_000) % len(found)]
    if kind.startswith("a length"):
        files.flip_length(block, record)
    else:
        files.flip_payload(block, record)
    if kind.endswith("without the index"):
        files.forget_index(store)
    return kind
