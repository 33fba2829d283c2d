"""A retriever behind HTTP: the client of `estr.tools.service`."""

import time
from collections.abc import Callable
from typing import Any, TypeVar
from urllib.parse import quote

from estr.errors import UserError
from estr.files import strict_json
from estr.net import replies
from estr.net.address import parse_address
from estr.tools.search import Hit

_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 5.0  # seconds
_DETAIL = 300  # characters of an answer that are repeated
Content = TypeVar("Content")


class HttpSearch:
    """A `SearchBackend` over the service at `url`; safe to share between threads.

    A connection error, a timeout or a 5xx answer is tried again up to `retries` times, after 0.1 s, 0.2 s, 0.4 s, ...
    but never more than 5 s: two minutes in all, in which a service can be started again. Raises `UserError` naming the
    URL if the service stays out of reach or refuses a request.
    """

    def __init__(self, url: str, timeout: float = 30.0, retries: int = 30, check: bool = True) -> None:
        """`timeout` in seconds per try. With `check`, the service must answer its health check now."""
        import httpx

        parse_address(url, "a search service asks for none")
        self._url = url.rstrip("/")
        self._retries = retries
        self._transport_error = httpx.TransportError
        # a proxy from the environment is not for a service on this machine or cluster
        hooks = {"response": [replies.bound]}
        try:
            self._client = httpx.Client(base_url=self._url, timeout=timeout, trust_env=False, event_hooks=hooks)
        except (ValueError, httpx.InvalidURL) as error:
            raise UserError(f"{url!r}: not the URL of a search service; {' '.join(str(error).split())}") from error
        if check:
            self.health()

    def search(self, query: str, k: int) -> list[Hit]:
        return self._json("POST", "/search", _hits, {"query": query, "k": k})

    def get(self, docid: str) -> str:
        # points escaped as well: "." and ".." would be steps in the path
        path = f"/documents/{quote(docid, safe='').replace('.', '%2E')}"
        return self._json("GET", path, lambda answer: _text(answer["text"]), missing=KeyError(docid))

    def health(self) -> int:
        """Number of documents behind the service."""
        return self._json("GET", "/health", lambda answer: int(answer["documents"]))

    def close(self) -> None:
        self._client.close()

    def _json(
        self,
        method: str,
        path: str,
        read: Callable[[Any], Content],
        body: dict[str, Any] | None = None,
        missing: Exception | None = None,
    ) -> Content:
        """What `read` makes of a JSON answer; `missing` is what a 404 means where it has a meaning."""
        pause = _FIRST_PAUSE
        for tries_left in range(self._retries, -1, -1):
            try:
                response = self._client.request(method, path, json=body)
            except self._transport_error as error:
                problem = f"cannot be reached ({type(error).__name__}: {error}); is `estr search serve` running?"
            except replies.TooLong as error:
                raise UserError(f"{self._url}: not a search service of estr: {error}") from error
            else:
                if response.status_code == 404 and missing is not None:
                    raise missing
                if response.status_code < 500:
                    return self._read(response, read)
                problem = f"failed with status {response.status_code} ({_detail(response)})"
            if tries_left:
                time.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)
        raise UserError(f"{self._url}: the search service {problem}")

    def _read(self, response: Any, read: Callable[[Any], Content]) -> Content:
        if response.status_code != 200:
            reason = f"status {response.status_code}, {_detail(response)}"
            raise UserError(f"{self._url}: the search service refused a request ({reason})")
        try:
            return read(strict_json.loads(response.text))
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
            reason = " ".join(repr(error).split())[:_DETAIL]
            raise UserError(f"{self._url}: not a search service of estr, by its answer ({reason})") from error


def _hits(answer: Any) -> list[Hit]:
    return [Hit(_text(hit["docid"]), float(hit["score"]), _text(hit["text"])) for hit in answer["hits"]]


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("no text")
    value.encode()  # half of a surrogate pair, which no tokenizer takes, is a ValueError
    return value


def _detail(response: Any) -> str:
    try:
        return " ".join(str(strict_json.loads(response.text)["detail"]).split())[:_DETAIL]
    except (ValueError, KeyError, TypeError, RecursionError):
        return "no detail given"
