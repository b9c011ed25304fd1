"""The address to listen on: bound early, so that a port in use is known before a model is loaded."""

from __future__ import annotations

import errno
import socket

from superinfer.contracts.errors import AddressError


def bind(host: str, port: int) -> socket.socket:
    """A socket bound to host:port and not listening yet; port 0 takes a free one. Raises AddressError."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except socket.gaierror as error:
        raise AddressError(
            f"--host {host} is not an address of this machine ({error.strerror}); "
            "use 127.0.0.1, 0.0.0.0, or a name that resolves to one of its addresses"
        ) from None
    bound = socket.socket(family, kind, protocol)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except OSError as error:
        bound.close()
        raise address_error(host, port, error) from None
    return bound


def listen(bound: socket.socket, host: str, port: int) -> None:
    """Start listening. Raises AddressError where another process bound the same port and listened first."""
    try:
        bound.listen(2048)
    except OSError as error:
        raise address_error(host, port, error) from None


def address_error(host: str, port: int, error: OSError) -> AddressError:
    """Why host:port cannot be listened on, and what to do."""
    match error.errno:
        case errno.EADDRINUSE:
            fix = "the port is in use; stop the other process or choose another --port (0 takes a free one)"
        case errno.EACCES:
            fix = "permission denied; ports below 1024 are privileged, choose another --port"
        case errno.EADDRNOTAVAIL:
            fix = "this machine has no such address; use --host 127.0.0.1 or 0.0.0.0"
        case _:
            fix = error.strerror or str(error)
    return AddressError(f"cannot listen on {host}:{port}: {fix}")


def url(host: str, port: int) -> str:
    """The base URL; an IPv6 address is put in brackets."""
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
