"""A refusal as RFC 9457 describes it: what was wrong, and the remedy. Pure."""

from __future__ import annotations

from headrace.errors import HeadraceError

CONTENT_TYPE = "application/problem+json"
_TITLES = {
    400: "Bad Request",
    401: "Unauthorized",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
    409: "Conflict",
    413: "Content Too Large",
    415: "Unsupported Media Type",
    429: "Too Many Requests",
    503: "Service Unavailable",
}


class ProblemError(HeadraceError):
    """Ends a request; `code` is a word that the page can rely on."""

    def __init__(self, status: int, code: str, detail: str, remedy: str) -> None:
        super().__init__(detail, remedy=remedy)
        # The status is for HTTP, the code for the page, the detail for people.
        self.status = status
        self.code = code
        self.detail = detail

    def body(self) -> dict[str, object]:
        return {
            "type": "about:blank",
            "title": _TITLES.get(self.status, "Error"),
            "status": self.status,
            "detail": self.detail,
            "remedy": self.remedy,
            "code": self.code,
        }


def invalid(detail: str, remedy: str = "Correct the request.") -> ProblemError:
    """The request itself is wrong."""
    return ProblemError(400, "invalid", detail, remedy)


def not_found(detail: str, remedy: str = "Check the name.") -> ProblemError:
    return ProblemError(404, "not_found", detail, remedy)


def unavailable(
    detail: str, remedy: str = "Try again; the overview names the cause."
) -> ProblemError:
    """A server that the answer needs can't be reached."""
    return ProblemError(503, "unavailable", detail, remedy)
