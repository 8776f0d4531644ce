"""The workers of a study answer only their own command."""

from __future__ import annotations

import socket
import ssl

import pytest

from wse_sim.errors import WseError
from wse_sim.studies import private
from wse_sim.studies.pool import Dask
from wse_sim.studies.private import temporary_keys

distributed = pytest.importorskip("distributed")


def _greets(port: int, context: ssl.SSLContext | None) -> bool:
    """Return whether the engine speaks behind a port: it greets first, whoever has come in."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1) as plain:
            if context is None:
                return bool(plain.recv(1))
            with context.wrap_socket(plain) as made:  # since TLS 1.3 the refusal comes with the first read
                return bool(made.recv(1))
    except OSError:  # TLS's faults and the end of waiting are among them
        return False


def _context(keys: distributed.Security) -> ssl.SSLContext:
    """Make the TLS context of a client that has these keys and accepts any server."""
    context: ssl.SSLContext = keys.get_connection_args("client")["ssl_context"]
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


@pytest.mark.slow
def test_a_stranger_is_refused_at_every_port() -> None:
    """Every port of the command and its workers refuses a client without TLS, without a key, or with another key; the
    command's key opens three.
    """
    psutil = pytest.importorskip("psutil")
    pool = Dask(workers=1)
    try:
        assert pool._client.submit(sum, (1, 2)).result() == 3
        own = psutil.Process()
        ports = {
            one.laddr.port
            for process in (own, *own.children(recursive=True))
            for one in process.net_connections("tcp")
            if one.status == psutil.CONN_LISTEN
        }
        assert len(ports) >= 3  # scheduler, nanny, worker; their pages of figures beside
        strangers = (None, ssl._create_unverified_context(), _context(temporary_keys()))
        assert not [port for port in ports for stranger in strangers if _greets(port, stranger)]
        own_keys = _context(pool._cluster.security)
        assert len([port for port in ports if _greets(port, own_keys)]) == 3
    finally:
        pool.close()


def test_keys_are_made_by_openssl_where_cryptography_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two keys differ; without the program too, one sentence names both remedies."""

    def missing() -> None:
        raise ImportError

    monkeypatch.setattr(distributed.Security, "temporary", missing)
    one, other = temporary_keys(), temporary_keys()
    assert one.require_encryption
    assert one.tls_ca_file == one.tls_worker_cert != other.tls_worker_cert
    assert one.tls_worker_key != other.tls_worker_key
    monkeypatch.setattr(private, "_OPENSSL", ("no-such-program",))
    with pytest.raises(WseError, match="pip install cryptography, or run with --workers 0"):
        temporary_keys()
    monkeypatch.setattr(private, "_OPENSSL", ("true",))
    with pytest.raises(WseError, match="pip install cryptography"):
        temporary_keys()
