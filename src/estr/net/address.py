"""Addresses of services: what stands in one is logged, recorded and seen in process lists, so no key belongs there."""

from urllib.parse import SplitResult, urlsplit

from estr.errors import UserError


def parse_address(url: str, keys: str) -> SplitResult:
    """The parts of `http(s)://host[:port][/path]`.

    Raises `UserError` for anything else and for an address with user, password or query. `keys` says where a key
    belongs; what could be one is not repeated.
    """
    if any(mark in url for mark in "@?#"):
        raise UserError(f"a server's address holds no key: {keys}")
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise UserError(f"{url!r} is no address of a server ({error})") from error
    if parts.scheme not in ("http", "https") or not host or port == 0:
        raise UserError(f"{url!r} is no address of a server; it looks like http://127.0.0.1:30000")
    return parts


def require_no_password(uri: str) -> None:
    """Raises `UserError` for a tracking store's URI with what may be a password in it; a database's user may stand."""
    try:
        parts = urlsplit(uri)
    except ValueError as error:
        raise UserError(f"the tracking store's URI is none ({error})") from error
    user = parts.netloc.rpartition("@")[0]
    if ":" in user or parts.query or (user and parts.scheme in ("http", "https")):
        raise UserError(
            "the tracking store's URI holds a password or a query, which logs and reports would show: leave it out and "
            "set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or for PostgreSQL use .pgpass and PGSSLMODE"
        )
