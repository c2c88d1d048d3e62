"""The console's pages in a browser: opened, waited for, and examined."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
from pathlib import Path

from headrace.console import __file__ as package
from headrace.testing.browser import Browser

TIMEOUT_S = 120.0
AXE = Path(package).parent / "web" / "node_modules" / "axe-core" / "axe.min.js"
RULES = ["wcag2a", "wcag2aa", "wcag21aa", "wcag22aa", "best-practice"]
Look = tuple[int, int, bool]
LOOKS: list[Look] = [(1280, 900, False), (390, 844, True)]
ALL_LOOKS: list[Look] = [
    (width, height, dark)
    for width, height in ((390, 844), (768, 1024), (1280, 900), (1920, 1080))
    for dark in (False, True)
]


# The name of a control, as assistive technology reads it.
_NAME = (
    "e.getAttribute('aria-label') || e.labels?.[0]?.querySelector('span')?.innerText || e.innerText"
)
_FOCUSED = f"((e) => {_NAME})(document.activeElement)"
_STEPS_MAX = 200


# Text that is cut off: elements that reach over the edge of their card, and tables that are wider than
# it. Only the result of a statement may have more columns than any screen.
_CUT_OFF = """
[...document.querySelectorAll('main .card, main .figures, dialog')].flatMap((card) => {
  const edge = card.getBoundingClientRect().right + 1;
  const wide = [...card.querySelectorAll('.flush')].filter(
    (one) => !one.querySelector('.result') && one.scrollWidth > one.clientWidth + 1);
  const over = [...card.querySelectorAll('*')].filter(
    (one) => one.getBoundingClientRect().right > edge && one.checkVisibility()
      && !one.closest('.flush, .list, .columns, pre, .hidden, .u-wrap, .tabs'));
  return [...wide, ...over].map((one) => one.className + ' ' + one.innerText.slice(0, 60));
})
"""


async def until(page: Browser, condition: str) -> None:
    """Wait until a JavaScript expression is true in the page."""
    try:
        async with asyncio.timeout(TIMEOUT_S):
            while not await page.evaluate(condition):  # noqa: ASYNC110  # the page tells nobody
                await asyncio.sleep(0.1)
    except TimeoutError:
        text = await page.evaluate("document.body.innerText")
        raise AssertionError(f"never true: {condition}\n{text}") from None


async def reach(page: Browser, words: str) -> None:
    """Move the focus by the keyboard to the control that is named so."""
    for _ in range(_STEPS_MAX):
        if await page.evaluate(f"({_FOCUSED}) === {json.dumps(words)}"):
            return
        await page.press("Tab")
    text = await page.evaluate("document.body.innerText")
    raise AssertionError(f"the keyboard never reaches {words!r}\n{text}")


async def choose(page: Browser, words: str) -> None:
    """Reach a control that is there soon, and press Enter."""
    named = f"[...document.querySelectorAll('a, button')].some((e) => ({_NAME}) === {json.dumps(words)} && !e.disabled)"
    await until(page, named)
    await reach(page, words)
    await page.press("Enter")


async def pick(page: Browser, words: str, option: str) -> None:
    """Reach a list of options, and move to one of them."""
    await reach(page, words)
    chosen = "document.activeElement.selectedOptions[0].text"
    for _ in range(_STEPS_MAX):
        if await page.evaluate(chosen) == option:
            return
        await page.press("ArrowDown")
    raise AssertionError(f"{words!r} has no option {option!r}")


async def settled(page: Browser, path: str) -> None:
    """The page at this path shows what it has to show."""
    await until(page, f"location.pathname + location.search === {json.dumps(path)}")
    await until(page, "!!document.querySelector('h1') && !document.querySelector('.loading')")


async def visit(page: Browser, base: str, path: str) -> None:
    """Open a page, and wait until it shows what it has to show."""
    await page.go(base + path)
    await settled(page, path)


async def until_answers(port: int) -> None:
    """Wait until something listens there."""
    async with asyncio.timeout(TIMEOUT_S):
        while True:
            with contextlib.suppress(OSError):
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.close()
                return
            await asyncio.sleep(0.1)


async def keep_picture(page: Browser, name: str | None, path: str, look: Look) -> None:
    """Take the page's picture for the documentation, if it has a name there, and for the album of
    all pages (HEADRACE_CONSOLE_ALBUM).
    """
    width, _, dark = look
    pictures, album = (os.environ.get(f"HEADRACE_CONSOLE_{kind}") for kind in ("PICTURES", "ALBUM"))
    if not album and not (pictures and name and width == 1280 and not dark):
        return
    # As high as the page is long, so that what stays in place reaches its end.
    await page.looks_like(
        width, await page.evaluate("document.documentElement.scrollHeight"), dark=dark
    )
    picture = await page.screenshot()
    if album:
        place = re.sub(r"[^a-z0-9]+", "-", path.lower()).strip("-") or "overview"
        file = Path(album, f"{place[:60]}-{width}-{'dark' if dark else 'light'}.png")
        await asyncio.to_thread(file.write_bytes, picture)
    if pictures and name and width == 1280 and not dark:
        file = Path(pictures, f"console-{name}.png")
        await asyncio.to_thread(file.write_bytes, picture)


async def is_calm(page: Browser, look: str) -> None:
    """Nothing sticks out, nothing complains, and assistive technology can read everything."""
    wide = await page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
    assert wide[0] <= wide[1], f"{look}: {wide}"
    cut_off = await page.evaluate(_CUT_OFF)
    assert cut_off == [], f"{look}: {cut_off}"
    if AXE.exists():
        await page.evaluate(await asyncio.to_thread(AXE.read_text) + ";0")
        found = await page.evaluate(
            f"axe.run(document, {{runOnly: {RULES}}}).then((r) => r.violations.map((v) =>"
            " v.id + ' ' + v.nodes.map((n) => n.target + ' ' + n.failureSummary).join('; ')))"
        )
        assert found == [], look
    assert page.complaints == [], look
