"""A headless Chromium on one page, for tests of the pages that people see.

Uses the part of Chromium's DevTools protocol that reads a page. The process and its children end
with the block, and write only to the profile's folder.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import shutil
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp

TIMEOUT_S = 60.0
_NO_DOCUMENT = "Cannot find default execution context"
_POLL_S = 0.1
# Without its number, a key does nothing that browsers do themselves, such as moving the focus.
_CODES = {"Tab": 9, "Enter": 13, "Escape": 27, "ArrowUp": 38, "ArrowDown": 40}
_PHONE_WIDTH_MAX = 600
_ANSWER_BYTES_MAX = 32 * 1024 * 1024
_NAMES = ("chromium", "chromium-browser", "google-chrome")


def chromium() -> str | None:
    """Where Chromium is, if it is installed."""
    return next((path for name in _NAMES if (path := shutil.which(name))), None)


class Browser:
    """One open page."""

    def __init__(self, page: aiohttp.ClientWebSocketResponse) -> None:
        self._page = page
        self._asked = 0
        # Errors, warnings and reports of the content security policy, since `listen`.
        self.complaints: list[str] = []

    async def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression in the page; of a promise, what it becomes."""
        async with asyncio.timeout(TIMEOUT_S):
            while True:
                try:
                    answer = await self._ask(
                        "Runtime.evaluate",
                        expression=expression,
                        returnByValue=True,
                        awaitPromise=True,
                    )
                except AssertionError as error:
                    # The old document is gone a moment before the new one can be asked; the
                    # expression was not evaluated.
                    if _NO_DOCUMENT not in str(error):
                        raise
                    await asyncio.sleep(_POLL_S)
                else:
                    return answer["result"].get("value")

    async def listen(self) -> None:
        """Collect complaints from now on."""
        for domain in ("Runtime", "Log", "Page"):
            await self._ask(f"{domain}.enable")

    async def go(self, url: str) -> None:
        """Load another page in the same tab."""
        answer = await self._ask("Page.navigate", url=url)
        assert "errorText" not in answer, answer
        # The old document is gone a moment before the new one can be asked.
        async with asyncio.timeout(TIMEOUT_S):
            while not await self._is_there():  # noqa: ASYNC110  # the browser tells nobody
                await asyncio.sleep(_POLL_S)

    async def _is_there(self) -> bool:
        with contextlib.suppress(AssertionError):
            return bool(await self.evaluate("document.readyState") == "complete")
        return False

    async def press(self, *keys: str) -> None:
        """Press keys one after the other, by their names in JavaScript."""
        for key in keys:
            text = {"Enter": "\r"}.get(key, key if len(key) == 1 else "")
            code = _CODES.get(key, 0)
            await self._ask(
                "Input.dispatchKeyEvent",
                type="keyDown",
                key=key,
                text=text,
                windowsVirtualKeyCode=code,
            )
            await self._ask(
                "Input.dispatchKeyEvent", type="keyUp", key=key, windowsVirtualKeyCode=code
            )

    async def write(self, text: str) -> None:
        """Write into the field that has the focus."""
        await self._ask("Input.insertText", text=text)

    async def looks_like(self, width: int, height: int, *, dark: bool = False) -> None:
        """Show the page in a window of this size; a narrow one is a phone's."""
        narrow = width < _PHONE_WIDTH_MAX
        await self._ask(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=2 if narrow else 1,
            mobile=narrow,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await self._ask("Emulation.setEmulatedMedia", features=[scheme])

    async def screenshot(self) -> bytes:
        """The whole length of the page as a PNG."""
        answer = await self._ask("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        return base64.b64decode(answer["data"])

    async def _ask(self, method: str, **parameters: Any) -> Any:
        self._asked += 1
        await self._page.send_json({"id": self._asked, "method": method, "params": parameters})
        async with asyncio.timeout(TIMEOUT_S):
            while True:
                answer = await self._page.receive_json()
                self._note(answer)
                if answer.get("id") == self._asked:
                    assert "result" in answer, str(answer)
                    return answer["result"]

    def _note(self, message: dict[str, Any]) -> None:
        """Keep what the page complains about."""
        found = message.get("params", {})
        match message.get("method"):
            case "Runtime.exceptionThrown":
                self.complaints.append(str(found["exceptionDetails"]))
            case "Runtime.consoleAPICalled" if found["type"] in {"error", "warning"}:
                self.complaints.append(str(found["args"]))
            case "Log.entryAdded" if found["entry"]["level"] in {"error", "warning"}:
                self.complaints.append(str(found["entry"]))

    async def text(self, selector: str) -> str:
        """The text of the first element that matches; empty without one."""
        return str(
            await self.evaluate(
                f"document.querySelector({json.dumps(selector)})?.textContent ?? ''"
            )
        )

    async def shows(self, words: str) -> None:
        """Wait until the page shows these words."""
        shown = ""
        try:
            async with asyncio.timeout(TIMEOUT_S):
                while words not in shown:
                    shown = str(await self.evaluate("document.body?.innerText ?? ''"))
                    await asyncio.sleep(_POLL_S)
        except TimeoutError:
            raise AssertionError(f"the page does not show {words!r}:\n{shown}") from None


@contextlib.asynccontextmanager
async def browser(profile: Path, url: str) -> AsyncIterator[Browser]:
    """The page at this address, open for as long as the block lasts."""
    path = chromium()
    assert path is not None, "Chromium is not installed"
    options = [
        "--headless=new",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--no-first-run",
        # It connects only to the page under test.
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--remote-debugging-port=0",
    ]
    # Chromium's sandbox refuses to start for root, and containers run tests as root.
    options += ["--no-sandbox"] if os.geteuid() == 0 else []
    process = await asyncio.create_subprocess_exec(
        path,
        *options,
        f"--user-data-dir={profile}",
        url,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        async with (
            aiohttp.ClientSession() as http,
            http.ws_connect(
                await _page(http, profile, url), max_msg_size=_ANSWER_BYTES_MAX
            ) as page,
        ):
            yield Browser(page)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


async def _page(http: aiohttp.ClientSession, profile: Path, url: str) -> str:
    """The address under which the page can be asked."""
    port_file = profile / "DevToolsActivePort"
    async with asyncio.timeout(TIMEOUT_S):
        while not (port_file.exists() and len(lines := port_file.read_text().split()) == 2):  # noqa: ASYNC110  # a file gives no event
            await asyncio.sleep(_POLL_S)
        while True:
            async with http.get(f"http://127.0.0.1:{lines[0]}/json/list") as answer:
                for target in await answer.json():
                    if target["type"] == "page" and target["url"].startswith(url):
                        return str(target["webSocketDebuggerUrl"])
            await asyncio.sleep(_POLL_S)
