"""Rewrites files of tables, in Spark's workers. The files count once a cut refers to them."""

from __future__ import annotations

import os
import pickle
from collections.abc import Sequence

from headrace.lake.compaction import CompactWork, rewritten
from headrace.lake.files import LakeFiles
from headrace.settings import load


def run_rewrite(packed: bytes, task: int) -> bytes:
    """A task of Spark's: the new files of one rewrite."""
    works: Sequence[CompactWork] = pickle.loads(packed)  # noqa: S301  # from the lake-writer
    settings = load(os.environ)
    assert settings.lake.url, "checked by the lake-writer"
    return pickle.dumps(rewritten(LakeFiles(settings.lake.url), works[task]))


# As Spark's workers find it.
TASK = f"{__name__}:{run_rewrite.__name__}"
