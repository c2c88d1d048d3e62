"""Random requests to JetStream, carried out one after the other; the same for both servers.

A script is drawn while it runs for the first time, because its expectations depend on the content
of the stream; then it is a list of plain requests.
"""

from __future__ import annotations

import json
import random
from collections.abc import AsyncIterator
from typing import Any

from nats.aio.client import Client

STREAM = "FIDELITY"
_SUBJECTS = ("f.a", "f.b", "f.kv")
# A reply, the headers and the payload of a message; or a question.
Request = tuple[str, Any]


class Drawer:
    """Draws the next request, knowing how the stream ends."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)
        self._ids = [f"id{number}" for number in range(12)]
        self._batches = 0

    def next(self, last_seq: int, last_id: str) -> Request:
        kind = self._chance.choice(
            ("publish", "publish", "atomic", "fast", "get", "delete", "info")
        )
        if kind == "publish":
            return kind, [self._message(last_seq, last_id)]
        if kind in ("atomic", "fast"):
            self._batches += 1
            return kind, (f"b{self._batches}", self._batch(kind, last_seq))
        if kind == "info":
            return kind, None
        return kind, self._chance.randint(1, last_seq + 1)

    def _message(self, last_seq: int, last_id: str) -> tuple[str, dict[str, str]]:
        headers = self._id()
        if self._chance.random() < 0.3:
            headers["Nats-Expected-Last-Sequence"] = str(self._near(last_seq))
        if self._chance.random() < 0.3:
            headers["Nats-Expected-Last-Msg-Id"] = self._chance.choice((last_id, last_id, "id3"))
        subject = self._chance.choice(_SUBJECTS)
        if subject == "f.kv":
            headers = {"Nats-Expected-Last-Subject-Sequence": str(self._near(last_seq))}
        return subject, headers

    def _id(self) -> dict[str, str]:
        known = self._chance.random()
        if known < 0.1:
            return {}
        fresh = f"n{self._chance.getrandbits(40)}"
        return {"Nats-Msg-Id": fresh if known < 0.7 else self._chance.choice(self._ids)}

    def _near(self, last_seq: int) -> int:
        return max(0, last_seq + self._chance.choice((0, 0, 0, 0, -1, 1)))

    def _batch(self, kind: str, last_seq: int) -> list[tuple[int, str, dict[str, str]]]:
        """Messages with their numbers; one may be missing, or be a duplicate, or expect too much."""
        size = self._chance.choice((1, 2, 3, 5, 9))
        messages = []
        used: set[str] = set()
        for number in range(1, size + 1):
            headers = self._id()
            if headers.get("Nats-Msg-Id", "") in used:
                headers = {}
            used |= set(headers.values())
            if kind == "fast" or number == 1:
                headers["Nats-Expected-Last-Sequence"] = str(self._near(last_seq + number - 1))
            messages.append((number, self._chance.choice(_SUBJECTS[:2]), headers))
        if size > 2 and self._chance.random() < 0.2:
            del messages[self._chance.randrange(size - 1)]
        return messages


class Runner:
    """Carries requests out over a client, and gives what was answered, without what must differ."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._flow = 3

    async def prepare(self) -> None:
        config = {
            "name": STREAM,
            "subjects": ["f.>"],
            "storage": "file",
            "retention": "limits",
            "num_replicas": 1,
            "duplicate_window": 120_000_000_000,
            "allow_direct": True,
            "allow_atomic": True,
            "allow_batched": True,
        }
        await self._ask(f"STREAM.CREATE.{STREAM}", config)

    async def end(self) -> tuple[int, str]:
        """The stream's last sequence, and the id of the message there."""
        last_seq = (await self.info())["last_seq"]
        found = await self.get(last_seq)
        return last_seq, found.get("id", "")

    async def run(self, kind: str, what: Any) -> Any:
        if kind == "publish":
            return [await self._answered(subject, headers) for subject, headers in what]
        if kind == "atomic":
            return await self._atomic(*what)
        if kind == "fast":
            return [one async for one in self._fast(*what)]
        if kind == "info":
            return await self.info()
        if kind == "get":
            return await self.get(what)
        return (await self._ask(f"STREAM.MSG.DELETE.{STREAM}", {"seq": what})).get("success", False)

    async def info(self) -> dict[str, int]:
        state = (await self._ask(f"STREAM.INFO.{STREAM}", None))["state"]
        return {name: state[name] for name in ("messages", "first_seq", "last_seq")}

    async def get(self, seq: int) -> dict[str, Any]:
        answer = await self._ask(f"STREAM.MSG.GET.{STREAM}", {"seq": seq})
        if "error" in answer:
            return {"error": answer["error"]["err_code"]}
        js = self._client.jetstream()
        message = await js.get_msg(STREAM, seq=seq)
        headers = message.headers or {}
        return {"subject": message.subject, "id": headers.get("Nats-Msg-Id", "")}

    async def _ask(self, verb: str, body: Any) -> Any:
        payload = json.dumps(body).encode() if body is not None else b""
        return json.loads((await self._client.request(f"$JS.API.{verb}", payload, timeout=10)).data)

    async def _answered(self, subject: str, headers: dict[str, str]) -> Any:
        reply = await self._client.request(subject, b"x", timeout=10, headers=headers or None)
        return json.loads(reply.data)

    async def _atomic(self, name: str, messages: list[tuple[int, str, dict[str, str]]]) -> Any:
        *others, (number, subject, headers) = messages
        for other, of, given in others:
            await self._client.publish(of, b"x", headers=_named(given, name, other))
        last = {**_named(headers, name, number), "Nats-Batch-Commit": "1"}
        return await self._answered(subject, last)

    async def _fast(
        self, name: str, messages: list[tuple[int, str, dict[str, str]]]
    ) -> AsyncIterator[Any]:
        """Every answer up to the batch's end."""
        inbox = self._client.new_inbox()
        subscription = await self._client.subscribe(f"{inbox}.>")
        for number, subject, headers in messages:
            operation = 2 if number == messages[-1][0] else int(number > 1)
            reply = f"{inbox}.{name}.{self._flow}.fail.{number}.{operation}.$FI"
            await self._client.publish(subject, b"x", reply=reply, headers=headers)
        last = f".{messages[-1][0]}.2.$FI"
        while True:
            message = await subscription.next_msg(timeout=10)
            answer = json.loads(message.data)
            yield message.subject.rsplit(".", 3)[1], answer
            if message.subject.endswith(last) and "type" not in answer:
                break
        await subscription.unsubscribe()


def _named(headers: dict[str, str], name: str, number: int) -> dict[str, str]:
    return {**headers, "Nats-Batch-Id": name, "Nats-Batch-Sequence": str(number)}


async def drawn_and_run(client: Client, seed: int, length: int) -> list[tuple[Request, Any]]:
    """A script of a seed, with what was answered."""
    drawer, runner = Drawer(seed), Runner(client)
    await runner.prepare()
    done: list[tuple[Request, Any]] = []
    for _ in range(length):
        request = drawer.next(*await runner.end())
        done.append((request, await runner.run(*request)))
    return done


async def run_again(client: Client, requests: list[Request]) -> list[Any]:
    runner = Runner(client)
    await runner.prepare()
    return [await runner.run(*request) for request in requests]


def comparable(answer: Any) -> Any:
    """An answer without the text of its errors, which is for people."""
    if isinstance(answer, dict):
        return {key: comparable(one) for key, one in answer.items() if key != "description"}
    if isinstance(answer, list | tuple):
        return [comparable(one) for one in answer]
    return answer
