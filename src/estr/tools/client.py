"""A retriever behind HTTP: the client of `estr.tools.service`."""

import time
from typing import Any
from urllib.parse import quote

from estr.address import parse_address
from estr.errors import UserError
from estr.tools.search import Hit

_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 5.0  # seconds


class HttpSearch:
    """A `SearchBackend` over the service at `url`; safe to share between threads.

    A connection error, a timeout or a 5xx answer is tried again up to `retries` times, after 0.1 s, 0.2 s, 0.4 s, ...
    but never more than 5 s. Raises `UserError` naming the URL if the service stays out of reach or refuses a request.
    """

    def __init__(self, url: str, timeout: float = 30.0, retries: int = 6, check: bool = True) -> None:
        """`timeout` in seconds per try. With `check`, the service must answer its health check now."""
        import httpx

        parse_address(url, "a search service asks for none")
        self._url = url.rstrip("/")
        self._retries = retries
        self._transport_error = httpx.TransportError
        # a proxy from the environment is not for a service on this machine or cluster
        self._client = httpx.Client(base_url=self._url, timeout=timeout, trust_env=False)
        if check:
            self.health()

    def search(self, query: str, k: int) -> list[Hit]:
        hits = self._json("POST", "/search", "hits", {"query": query, "k": k})
        return [Hit(hit["docid"], hit["score"], hit["text"]) for hit in hits]

    def get(self, docid: str) -> str:
        # points escaped as well: "." and ".." would be steps in the path
        text = self._json(
            "GET", f"/documents/{quote(docid, safe='').replace('.', '%2E')}", "text", missing=KeyError(docid)
        )
        return str(text)

    def health(self) -> int:
        """Number of documents behind the service."""
        return int(self._json("GET", "/health", "documents"))

    def close(self) -> None:
        self._client.close()

    def _json(
        self,
        method: str,
        path: str,
        field: str,
        body: dict[str, Any] | None = None,
        missing: Exception | None = None,
    ) -> Any:
        """The field of a JSON answer; `missing` is what a 404 means where it has a meaning."""
        pause = _FIRST_PAUSE
        for tries_left in range(self._retries, -1, -1):
            try:
                response = self._client.request(method, path, json=body)
            except self._transport_error as error:
                problem = f"cannot be reached ({type(error).__name__}: {error}); is `estr search serve` running?"
            else:
                if response.status_code == 404 and missing is not None:
                    raise missing
                if response.status_code < 500:
                    return self._read(response, field)
                problem = f"failed with status {response.status_code} ({_detail(response)})"
            if tries_left:
                time.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)
        raise UserError(f"{self._url}: the search service {problem}")

    def _read(self, response: Any, field: str) -> Any:
        if response.status_code != 200:
            reason = f"status {response.status_code}, {_detail(response)}"
            raise UserError(f"{self._url}: the search service refused a request ({reason})")
        try:
            return response.json()[field]
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(f"{self._url}: not a search service of estr (no {field!r} in its answer)") from error


def _detail(response: Any) -> str:
    try:
        return str(response.json()["detail"])
    except (ValueError, KeyError, TypeError):
        return "no detail given"
