"""`headrace --version`: the version of the installed distribution.

`importlib.metadata` would take longer to load than all else that this command does: it parses mail
headers. The folder of the distribution's metadata has the version in its name.
"""

from __future__ import annotations

import os
import sys

_SUFFIX = ".dist-info"
_NAME = "headrace-"


def line() -> str:
    return f"headrace {version()}"


def version() -> str:
    """The version by the first folder of metadata on the path, as Python itself looks for it."""
    for place in sys.path:
        try:
            names = os.listdir(place or ".")  # noqa: PTH208  # pathlib takes longer to load
        except OSError:
            # A path may name a file, or nothing.
            continue
        for name in names:
            if name.startswith(_NAME) and name.endswith(_SUFFIX):
                return name.removeprefix(_NAME).removesuffix(_SUFFIX)
    from importlib import metadata

    return metadata.version("headrace")
