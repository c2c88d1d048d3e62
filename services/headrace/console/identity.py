"""Signing in and out."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

from aiohttp import web

from headrace.console.access import Access, Caller
from headrace.console.guard import CALLER
from headrace.console.json_answers import answer, body_of
from headrace.console.problem import ProblemError, invalid
from headrace.console.sessions import COOKIE, SESSION_S, Sessions


class SignIn:
    def __init__(self, access: Access, sessions: Sessions, source: str) -> None:
        self._access = access
        self._sessions = sessions
        self._source = source

    async def me(self, request: web.Request) -> web.Response:
        return answer(self._of(request.get(CALLER)))

    def _of(self, caller: Caller | None) -> dict[str, Any]:
        found: dict[str, Any] = {"user": None, "role": None, "how": None}
        rights: dict[str, Any] = {"values": [], "export": [], "sql": []}
        if caller is not None:
            found = {"user": caller.user, "role": caller.role.word, "how": caller.how}
            rights = {
                "values": list(caller.values),
                "export": list(caller.export),
                "sql": list(caller.sql),
            }
        return {
            **found,
            **rights,
            "source": self._source,
            "version": version("headrace"),
            "sign_in": self._access.sign_in,
        }

    async def sign_in(self, request: web.Request) -> web.Response:
        """Exchange a token for a cookie that scripts can't read."""
        address = request.remote or ""
        # Before the body is read: guessing tokens must not be worth the while.
        self._sessions.check_attempts(address)
        body = await body_of(request, "token")
        token = body.get("token")
        if not isinstance(token, str):
            raise invalid("token is missing")
        caller = self._access.by_token(token)
        if caller is None:
            self._sessions.note_failure(address)
            raise ProblemError(401, "sign_in", "The token is unknown.", "Check the token.")
        # Strict, so that no other site can make the browser send it.
        response = answer(self._of(caller))
        response.set_cookie(
            COOKIE,
            self._sessions.begin(caller),
            max_age=SESSION_S,
            path="/",
            secure=True,
            httponly=True,
            samesite="Strict",
        )
        return response

    async def sign_out(self, request: web.Request) -> web.Response:
        self._sessions.end(request.cookies.get(COOKIE, ""))
        response = web.Response(status=204)
        response.del_cookie(COOKIE, path="/", secure=True, httponly=True, samesite="Strict")
        return response
