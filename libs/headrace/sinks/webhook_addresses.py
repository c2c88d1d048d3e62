"""The addresses that a webhook may reach: public ones, and networks that are allowed by name.

Names are checked after their resolution, and the connection uses the very addresses that were
checked, so a name that changes its address in between reaches nothing else.
"""

from __future__ import annotations

import ipaddress
import socket
import ssl
from collections.abc import Iterable, Sequence

from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.resolver import ThreadedResolver

from headrace.errors import SettingError

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

# The last 32 bits are an IPv4 address, which a gateway reaches.
_NAT64 = ipaddress.ip_network("64:ff9b::/96")


class PrivateAddressError(OSError):
    """A name has an address that is not public."""


class PublicResolver(AbstractResolver):
    """Resolves names, and refuses those with an address that is not allowed."""

    def __init__(self, networks_allowed: Sequence[Network]) -> None:
        self._resolver = ThreadedResolver()
        self._networks = networks_allowed

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        """The addresses of a name."""
        found = await self._resolver.resolve(host, port, family)
        for one in found:
            if not allowed(one["host"], self._networks):
                raise PrivateAddressError(f"{host} has the address {one['host']}")
        return found

    async def close(self) -> None:
        """Release the resolver."""
        await self._resolver.close()


def networks(sink: str, texts: Iterable[str]) -> list[Network]:
    """The networks of an option."""
    try:
        return [ipaddress.ip_network(text) for text in texts]
    except ValueError as error:
        raise SettingError(
            f"The option allow_networks of sink {sink} is invalid: {error}",
            remedy="Name networks such as 10.1.0.0/16 or ::1/128.",
        ) from error


def allowed(host: str, networks_allowed: Sequence[Network]) -> bool | None:
    """Whether an address may be reached; None for a name, which is not resolved here."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return None
    inner = _inner(address)
    if any(inner in one for one in networks_allowed if one.version == inner.version):
        return True
    return inner.is_global and not inner.is_multicast


def tls_context(ca_file: str) -> ssl.SSLContext:
    """Verifies the receiver's certificate and its name."""
    return ssl.create_default_context(cafile=ca_file or None)


def _inner(address: Address) -> Address:
    """The IPv4 address inside an IPv6 address that leads to one."""
    if isinstance(address, ipaddress.IPv4Address):
        return address
    if address in _NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    teredo = address.teredo[1] if address.teredo else None
    return address.ipv4_mapped or address.sixtofour or teredo or address
