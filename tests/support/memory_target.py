"""A mirror's target in memory: what is committed, and what was written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headrace.mirror.target import Step, TargetError


class Memory:
    """A target that keeps what is committed, and what was done."""

    def __init__(self, **marks: str) -> None:
        self.marks: dict[str, str] = marks
        self.steps: list[Step] = []
        self.refuses: TargetError | None = None
        self.loads = 0

    async def load(self) -> dict[str, str]:
        self.loads += 1
        return dict(self.marks)

    async def write(self, steps: Sequence[Step]) -> None:
        if self.refuses is not None:
            raise self.refuses
        self.steps += steps

    async def commit(self, marks: Mapping[str, str | None]) -> None:
        for key, value in marks.items():
            if value is None:
                self.marks.pop(key, None)
            else:
                self.marks[key] = value
