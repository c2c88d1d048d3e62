"""Decides about every request before anything else: host, origin, who asks, and their role.

Promises: a page of another site, a name that another site made point here, and a forged header of a
proxy are refused, logged, and change nothing. Every answer has the strict policies of this module.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from urllib.parse import urlsplit

import orjson
from aiohttp import web

from headrace import log as logs
from headrace.console.access import HERE, Access, Caller, Role
from headrace.console.last_known import FAILURES
from headrace.console.problem import CONTENT_TYPE, ProblemError, unavailable
from headrace.console.sessions import COOKIE, Sessions
from headrace.errors import HeadraceError, describe
from headrace.http.authority import is_loopback

log = logs.logger("console")

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Refused = Callable[[web.Request, Caller | None, ProblemError], Awaitable[None]]
CALLER = "caller"
# The cookie of a caller who was recognised by it.
_SESSION = "session"
API = "/api/"
# Probes name a pod's address as their host.
_PROBES = frozenset({"/livez", "/readyz", "/metrics"})
# A server in front that passes requests on would make all of them look like this machine's.
_PASSED_ON = ("Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Real-IP", "Via")
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}


class Guard:
    """`roles` has the least role of each path and method; other paths need none."""

    def __init__(
        self,
        access: Access,
        sessions: Sessions,
        host: str,
        hosts: tuple[str, ...],
        roles: Mapping[tuple[str, str], Role | None],
        refused: Refused,
    ) -> None:
        self._access = access
        self._sessions = sessions
        self._here = is_loopback(host)
        self._hosts = frozenset(one.lower() for one in hosts)
        self._roles = roles
        self._refused = refused
        self.requests = 0

    def add(self, app: web.Application) -> None:
        """Guard this application."""

        @web.middleware
        async def guarded(request: web.Request, handler: Handler) -> web.StreamResponse:
            # Refused ones count, too: they are load.
            self.requests += 1
            try:
                self._check_place(request)
                self._check_role(request)
                return _with_headers(await handler(request))
            except ProblemError as problem:
                if problem.code in {"host", "origin", "sign_in", "role"}:
                    await self._refused(request, request.get(CALLER), problem)
                return answer_problem(problem)
            except web.HTTPException as error:
                return answer_problem(_of_aiohttp(error))
            except (*FAILURES, TimeoutError) as error:
                return answer_problem(_of_failure(error))

        app.middlewares.append(guarded)

    def _check_place(self, request: web.Request) -> None:
        """Whether the request was meant for this console, by one of its pages."""
        if request.path in _PROBES:
            return
        self._check_host(request)
        self._check_site(request)
        if request.method not in {"GET", "HEAD"}:
            self._check_form(request)

    def _check_host(self, request: web.Request) -> None:
        name = (request.url.host or "").lower()
        # Another site can point its name at this machine, and would then read every answer.
        if name in self._hosts or (self._here and is_loopback(name)):
            return
        # Without a list, another address accepts any name: cookies belong to the name, and a
        # console there always asks for one.
        if not self._here and not self._hosts:
            return
        raise ProblemError(
            403,
            "host",
            f"The console does not answer as {name!r}.",
            "Open it by its own address, or add the name to HEADRACE_CONSOLE_HOSTS.",
        )

    @staticmethod
    def _check_site(request: web.Request) -> None:
        site = request.headers.get("Sec-Fetch-Site", "none")
        # A link on another site may lead to a page, but not to an answer of the API.
        opens = request.headers.get("Sec-Fetch-Mode") == "navigate"
        # Old browsers and other programs send none; the other checks hold for them.
        if site in {"none", "same-origin"}:
            return
        if opens and request.method == "GET" and not request.path.startswith(API):
            return
        raise ProblemError(
            403, "origin", "Requests of other sites are refused.", "Use the console's own pages."
        )

    def _check_form(self, request: web.Request) -> None:
        """Whether a request that may act comes from a page of the console, or from no browser."""
        origin = request.headers.get("Origin")
        if origin is not None and urlsplit(origin).netloc.lower() != request.host.lower():
            raise ProblemError(
                403, "origin", f"Requests from {origin!r} are refused.", "Use the console's pages."
            )
        bearer = "Authorization" in request.headers
        # A page of another site can't send this header without asking first, and is never allowed.
        if not bearer and request.headers.get("X-Headrace") != "1":
            raise ProblemError(
                403, "origin", "The header X-Headrace is missing.", "Send X-Headrace: 1."
            )
        if request.can_read_body and request.content_type != "application/json":
            raise ProblemError(
                415, "invalid", "The body is not JSON.", "Send Content-Type: application/json."
            )

    def _check_role(self, request: web.Request) -> None:
        """Authenticate the caller, and compare the role."""
        caller = self._caller(request)
        if caller is not None:
            request[CALLER] = caller
        resource = request.match_info.route.resource
        if resource is None:
            return
        # By the route and not by the path: an encoded path is the same route.
        least = self._roles.get((request.method, resource.canonical))
        if least is None:
            return
        if caller is None:
            raise ProblemError(401, "sign_in", "You are not signed in.", self._sign_in_remedy())
        if caller.role < least:
            raise ProblemError(
                403,
                "role",
                f"The role {caller.role.word} may not do this.",
                f"Ask for the role {least.word}.",
            )

    def _sign_in_remedy(self) -> str:
        if self._access.sign_in == "token":
            return "Sign in with a token."
        return "Open the console through the proxy that signs you in."

    def _caller(self, request: web.Request) -> Caller | None:
        if self._access.open_here:
            return self._caller_here(request)
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            return self._by_token(request, token.strip())
        # A token counts more than a header: a proxy may pass both on.
        user = request.headers.get("X-Forwarded-User")
        if user is not None and self._access.proxies:
            return self._caller_of_proxy(request, user)
        request[_SESSION] = request.cookies.get(COOKIE, "")
        return self._sessions.caller(request[_SESSION])

    def _by_token(self, request: web.Request, token: str) -> Caller | None:
        address = request.remote or ""
        # As for signing in: guessing tokens must not be worth the while.
        self._sessions.check_attempts(address)
        caller = self._access.by_token(token)
        if caller is None:
            self._sessions.note_failure(address)
        return caller

    def may_continue(self, request: web.Request) -> bool:
        """Whether the caller of a request that has no end may continue: a session ends, by its time
        and by signing out.
        """
        session = request.get(_SESSION)
        return session is None or self._sessions.caller(session) == request[CALLER]

    @staticmethod
    def _caller_here(request: web.Request) -> Caller:
        passed_on = [name for name in _PASSED_ON if name in request.headers]
        if passed_on and request.path not in _PROBES:
            raise ProblemError(
                403,
                "host",
                f"A proxy passed this request on ({passed_on[0]}), and no token is set.",
                "Set HEADRACE_CONSOLE_TOKEN, or HEADRACE_CONSOLE_PROXIES.",
            )
        return HERE

    def _caller_of_proxy(self, request: web.Request, user: str) -> Caller | None:
        secret = request.headers.get("X-Headrace-Proxy-Secret", "")
        if not self._access.trusts(request.remote or "", secret):
            raise ProblemError(
                403,
                "origin",
                f"The address {request.remote} may not name users.",
                "Add it to HEADRACE_CONSOLE_PROXIES, with the secret.",
            )
        groups = request.headers.get("X-Forwarded-Groups", "")
        return self._access.by_proxy(user, [one.strip() for one in groups.split(",")])


def _with_headers(response: web.StreamResponse) -> web.StreamResponse:
    # Headers of a stream are on their way already.
    if not response.prepared:
        response.headers.update(HEADERS)
        response.headers.setdefault("Cache-Control", "no-store")
    return response


def answer_problem(problem: ProblemError) -> web.Response:
    # A refusal must not be served to the next caller from a cache.
    headers = {**HEADERS, "Cache-Control": "no-store"}
    return web.Response(
        body=orjson.dumps(problem.body()),
        status=problem.status,
        content_type=CONTENT_TYPE,
        headers=headers,
    )


def _of_aiohttp(error: web.HTTPException) -> ProblemError:
    if error.status == 404:
        return ProblemError(404, "not_found", "There is nothing here.", "See /api/v1/openapi.yaml.")
    if error.status == 413:
        return ProblemError(413, "too_large", "The request is too large.", "Send less.")
    return ProblemError(error.status, "invalid", error.reason, "See /api/v1/openapi.yaml.")


def _of_failure(error: BaseException) -> ProblemError:
    if isinstance(error, HeadraceError) and not error.retry and not isinstance(error, ProblemError):
        # Its message is for people, and names no value.
        return ProblemError(400, "invalid", error.args[0], error.remedy or "Correct the request.")
    log.info("request_failed", reason=type(error).__name__)
    return unavailable(describe(error))
