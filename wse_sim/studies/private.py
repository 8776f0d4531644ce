"""TLS keys for one local cluster: without them, nobody can send tasks to its processes or read results.

Scheduler and workers of a study listen on the loopback address, which every user of the machine can reach,
and run the code that they receive.  So they speak TLS on both sides with a key and a certificate that are
made for one cluster, are passed through pipes and are never written to a file.
"""

from __future__ import annotations

import re
import subprocess
from typing import TYPE_CHECKING

from wse_sim.errors import WseError

if TYPE_CHECKING:
    import distributed

_OPENSSL = (
    "openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "365",
    "-subj", "/CN=dask-internal", "-keyout", "-", "-out", "-",
)  # fmt: skip
_PEM = re.compile(r"-----BEGIN ([A-Z ]+)-----.*?-----END \1-----\n?", re.DOTALL)


def temporary_keys() -> distributed.Security:
    """Return a key and a self-signed certificate, made by the package cryptography, else by the program
    openssl.

    Raises
    ------
    WseError
        If neither is available.
    """
    import distributed

    try:
        return distributed.Security.temporary()
    except ImportError:  # of cryptography
        key, certificate = _made_by_openssl()
    parts = {f"tls_{role}_key": key for role in ("client", "scheduler", "worker")}
    parts |= {f"tls_{role}_cert": certificate for role in ("client", "scheduler", "worker")}
    return distributed.Security(require_encryption=True, tls_ca_file=certificate, **parts)


def _made_by_openssl() -> tuple[str, str]:
    try:
        done = subprocess.run(_OPENSSL, capture_output=True, text=True, timeout=60, check=True)
        found = {match[1]: match[0] for match in _PEM.finditer(done.stdout)}
        return found["PRIVATE KEY"], found["CERTIFICATE"]
    except (OSError, subprocess.SubprocessError, KeyError):
        raise WseError(
            "workers of a study need a secret key, which neither the package cryptography nor the program "
            "openssl makes here; pip install cryptography, or run with --workers 0"
        ) from None
