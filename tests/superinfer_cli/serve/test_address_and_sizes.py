from __future__ import annotations

import socket

import pytest

from superinfer.cli.serve.address import bind, listen, url
from superinfer.cli.serve.sizes import parse_bytes
from superinfer.contracts.errors import AddressError, UsageError


def test_a_port_that_is_listened_on_is_refused_with_address_and_fix():
    with bind("127.0.0.1", 0) as first:
        listen(first, "127.0.0.1", 0)
        port = first.getsockname()[1]
        with pytest.raises(AddressError, match=rf"127\.0\.0\.1:{port}.*--port") as raised:
            bind("127.0.0.1", port)
    assert raised.value.exit_code == 6


def test_a_port_that_another_took_meanwhile_is_refused_when_listening():
    with bind("127.0.0.1", 0) as first:
        port = first.getsockname()[1]
        with bind("127.0.0.1", port) as second:
            listen(first, "127.0.0.1", port)
            with pytest.raises(AddressError, match=str(port)):
                listen(second, "127.0.0.1", port)


def test_port_zero_takes_a_free_one():
    with bind("localhost", 0) as bound:
        assert bound.getsockname()[1] > 0


@pytest.mark.parametrize("host", ["203.0.113.7", "not a host", "no-such-name.invalid"])
def test_an_address_that_is_not_of_this_machine_is_refused_by_name(host):
    with pytest.raises(AddressError, match=host):
        bind(host, 0)


def test_a_bound_socket_does_not_take_connections_before_it_listens():
    with bind("127.0.0.1", 0) as bound, pytest.raises(ConnectionRefusedError):
        socket.create_connection(bound.getsockname())


def test_urls_put_ipv6_in_brackets():
    assert url("::1", 80) == "http://[::1]:80"
    assert url("127.0.0.1", 80) == "http://127.0.0.1:80"


@pytest.mark.parametrize(
    ("text", "size"),
    [("2GiB", 2**31), ("1.5 gb", 1_500_000_000), ("512MiB", 2**29), ("4096", 4096), (" 1kib ", 1024)],
)
def test_amounts_of_memory_are_read_as_written(text, size):
    assert parse_bytes(text, "--kv-cache-memory") == size


@pytest.mark.parametrize("text", ["", "GiB", "-1GiB", "0", "2 GiB extra", "2Gb it", "1e9", "inf"])
def test_what_is_no_amount_of_memory_is_refused_with_the_flag(text):
    with pytest.raises(UsageError, match="--kv-cache-memory"):
        parse_bytes(text, "--kv-cache-memory")
