"""The options of both RabbitMQ sinks, and the address."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from typing import Self
from urllib.parse import unquote, urlsplit

from headrace.sinks.port import SinkOptions
from headrace.sinks.target_options import check


@dataclass(frozen=True, slots=True)
class RabbitOptions:
    """The options that both forms have, `[sink.options]` in headrace.toml."""

    # Create missing streams and queues. Otherwise a missing one is an error.
    create: bool = True
    username: str = "guest"
    password: str = field(default="guest", repr=False)
    # TLS; implied by any of the files.
    tls: bool = False
    ca_file: str = ""
    certificate_file: str = ""
    key_file: str = ""


@dataclass(frozen=True, slots=True)
class Address:
    """Where the server is."""

    host: str
    port: int
    vhost: str
    tls: ssl.SSLContext | None

    @classmethod
    def of(cls, given: SinkOptions, options: RabbitOptions, port: int) -> Self:
        """Check and translate the sink's address; `port` is the default."""
        url = urlsplit(given.to)
        check(
            bool(url.hostname) and url.password is None,
            given.name,
            "to",
            f"It is {url.scheme}://host:{port}/vhost; username and password are options.",
        )
        path = url.path.removeprefix("/")
        return cls(str(url.hostname), url.port or port, unquote(path) or "/", _context(options))

    def __str__(self) -> str:
        return f"RabbitMQ at {self.host}:{self.port}"


def _context(options: RabbitOptions) -> ssl.SSLContext | None:
    if not (options.tls or options.ca_file or options.certificate_file):
        return None
    context = ssl.create_default_context(cafile=options.ca_file or None)
    if options.certificate_file:
        context.load_cert_chain(options.certificate_file, options.key_file or None)
    return context
