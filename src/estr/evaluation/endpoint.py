"""One model behind the OpenAI chat-completions protocol: requests that outlive a server's restart, and no leaks."""

import json
import logging
import os
import random
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from estr.errors import UserError
from estr.files import strict_json
from estr.net import replies
from estr.net.address import parse_address

NO_KEY = "EMPTY"  # what servers without keys are given by convention
REFUSED = (400, 413, 422)
"""Statuses by which a server says that this one request does not suit it (too long, for example)."""
_AGAIN = (408, 409, 425, 429, 502, 503, 504)
_DETAIL = 300  # characters of a server's error message that are repeated
_TELLING = 5  # words
_LONGEST_RETRY_AFTER_S = 120.0
_CONNECT_S = 10.0
Content = TypeVar("Content")
logger = logging.getLogger(__name__)


class ServerUnavailable(Exception):
    """The server did not answer a request, however often it was asked."""


class RequestRefused(Exception):
    """The server answered with a status of `REFUSED`."""


@dataclass(frozen=True)
class Retry:
    """Delays double from `first_delay_s` to `longest_delay_s`, with jitter; a server's Retry-After is kept.

    Lost connections, 429, 502, 503 and 504 are tried again for `patience_s` after the first of them; timeouts, 500
    and answers that are no chat completion, which asking again seldom mends, `tries` times in all.
    """

    patience_s: float = 120.0
    first_delay_s: float = 0.5
    longest_delay_s: float = 10.0
    tries: int = 3


PATIENT = Retry()


@dataclass(frozen=True)
class Reply:
    """`message` is the assistant's message as it came; `tokens` what it generated, None if the server does not say."""

    message: dict[str, Any]
    finish_reason: str
    tokens: int | None

    @property
    def content(self) -> str:
        """The message's text; "" if it has none."""
        content = self.message.get("content")
        if isinstance(content, list):  # parts, as the protocol allows
            return "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
        return content if isinstance(content, str) else ""


class _Again(Exception):
    def __init__(self, reason: str, patient: bool, wait_s: float = 0.0) -> None:
        super().__init__(reason)
        self.patient, self.wait_s = patient, wait_s


class ChatEndpoint:
    """Sends chats to `model` at `url` (with or without /v1); usable from many threads.

    The key comes from the environment variable `key_variable`; it goes into the Authorization header and nowhere
    else: in what the server answers it is struck out. A message that repeats what was sent is not shown. `optional`
    are request fields that some servers do not know; those that this server refuses are found out once, warned of,
    and left out.

    Raises:
        UserError: a malformed address or key, or a key inside the address.
    """

    def __init__(
        self,
        url: str,
        model: str,
        *,
        key_variable: str,
        timeout_s: float,
        retry: Retry = PATIENT,
        optional: Mapping[str, Any] | None = None,
    ) -> None:
        from openai import DefaultHttpxClient, OpenAI, Timeout

        self.url, host = _base_url(url, key_variable)
        self.model = model
        self._key = _read_key(key_variable)
        self._key_variable = key_variable
        self._retry = retry
        self._optional = dict(optional or {})
        self._accepted: dict[str, Any] | None = None
        self._hopeless: UserError | None = None
        self._negotiation = threading.Lock()
        # a proxy for the outside world must not see, or break, what goes to this machine
        local = host in ("localhost", "::1") or host.startswith("127.")
        hooks = {"response": [replies.bound]}
        transport = DefaultHttpxClient(trust_env=not local, event_hooks=hooks)
        timeout = Timeout(timeout_s, connect=min(timeout_s, _CONNECT_S))
        self._client = OpenAI(
            api_key=self._key, base_url=self.url, timeout=timeout, max_retries=0, http_client=transport
        )

    def models(self) -> list[str]:
        """Names of the models that the server serves. Raises `UserError` if it cannot be asked."""
        try:
            return self._patiently("get", "/models", None, lambda content: [str(m["id"]) for m in content["data"]])
        except (ServerUnavailable, RequestRefused) as error:
            raise UserError(f"{self.url}: no list of models ({error}); is an OpenAI-compatible server there?") from None

    def complete(self, messages: Sequence[Mapping[str, Any]], fields: Mapping[str, Any]) -> Reply:
        """One assistant turn after `messages`; `fields` are those of the request (an optional one only if accepted).

        Raises:
            ServerUnavailable: the server did not answer in spite of all retries.
            RequestRefused: the server does not take this request.
            UserError: it would take none: wrong key, wrong model, or it refuses even the plainest request.
        """
        accepted = self._accepted_fields(messages)
        chosen = {key: value for key, value in fields.items() if key not in self._optional or key in accepted}
        return self._ask(messages, accepted | chosen)

    def _ask(self, messages: Sequence[Mapping[str, Any]], fields: Mapping[str, Any]) -> Reply:
        body = _without_half_pairs({"model": self.model, "messages": list(messages), **fields})
        return self._patiently("post", "/chat/completions", body, _read_reply)

    def _accepted_fields(self, messages: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        with self._negotiation:
            if self._hopeless is not None:  # no other thread need find out as well
                raise self._hopeless
            if self._accepted is None:
                try:
                    self._accepted = self._negotiate(messages)
                except ServerUnavailable as error:
                    self._hopeless = UserError(f"{self.url}: the server does not answer ({error})")
                    raise self._hopeless from None
                except UserError as error:
                    self._hopeless = error
                    raise
            return self._accepted

    def _negotiate(self, messages: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        if self._takes(messages, self._optional):
            return self._optional
        try:
            self._ask(messages, {"max_tokens": 1})
        except RequestRefused as error:
            raise UserError(f"{self.url}: the server refuses a plain request to {self.model!r} ({error})") from None
        accepted = {key: value for key, value in self._optional.items() if self._takes(messages, {key: value})}
        refused = ", ".join(key for key in self._optional if key not in accepted)
        logger.warning("%s does not take %s in a request: what it has for a default applies", self.url, refused)
        return accepted

    def _takes(self, messages: Sequence[Mapping[str, Any]], fields: Mapping[str, Any]) -> bool:
        try:
            self._ask(messages, {"max_tokens": 1, **fields})
        except RequestRefused:
            return False
        return True

    def _patiently(self, method: str, path: str, body: Any, read: Callable[[Any], Content]) -> Content:
        delay, tries, deadline = self._retry.first_delay_s, 0, None
        while True:
            try:
                return self._once(method, path, body, read)
            except _Again as fault:
                now = time.monotonic()
                if fault.patient:
                    deadline = now + self._retry.patience_s if deadline is None else deadline
                    given_up = now >= deadline
                else:
                    tries += 1
                    given_up = tries >= self._retry.tries
                if given_up:
                    raise ServerUnavailable(str(fault)) from None
                logger.debug("%s: %s; trying again", self.url, fault)
                time.sleep(max(fault.wait_s, delay * random.uniform(0.5, 1.0)))
                delay = min(2 * delay, self._retry.longest_delay_s)

    def _once(self, method: str, path: str, body: Any, read: Callable[[Any], Content]) -> Content:
        import openai

        try:
            if method == "get":
                text = self._client.get(path, cast_to=str)
            else:
                text = self._client.post(path, cast_to=str, body=body)
        except openai.APITimeoutError as error:
            if type(error.__cause__).__name__ == "ConnectTimeout":
                raise _Again("no connection in time", patient=True) from None
            raise _Again("no answer in time", patient=False) from None
        except openai.APIConnectionError as error:
            raise _Again(self._clean(f"no connection ({error.__cause__ or error})"), patient=True) from None
        except replies.TooLong as error:
            raise _Again(str(error), patient=False) from None
        except openai.APIStatusError as error:
            raise self._fault(error.status_code, error.response.text, error.response.headers, body) from None
        try:
            return read(_without_half_pairs(strict_json.loads(self._struck(text))))
        except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError):
            raise _Again("an answer that is not of the protocol", patient=False) from None

    def _fault(self, status: int, text: str, headers: Mapping[str, str], body: Any) -> Exception:
        repeated = body is not None and _repeats(text, body["messages"])
        detail = f"{status}: {'its message repeats the request' if repeated else self._clean(text)}"
        if status in _AGAIN:
            return _Again(detail, patient=True, wait_s=_seconds(headers.get("retry-after", "")))
        if status >= 500:
            return _Again(detail, patient=False)
        if status in REFUSED:
            return RequestRefused(detail)
        hint = f"the key is read from {self._key_variable}" if status in (401, 403) else "check address and model"
        return UserError(f"{self.url}: the server answered {detail} ({hint})")

    def _clean(self, text: str) -> str:
        return " ".join(self._struck(text).split())[:_DETAIL]

    def _struck(self, text: str) -> str:
        return text.replace(self._key, "***") if self._key != NO_KEY else text


def _repeats(text: str, messages: Sequence[Mapping[str, Any]]) -> bool:
    """Whether `text` holds `_TELLING` words in a row of a message: a benchmark's questions stay out of logs."""

    def passages(part: str) -> set[tuple[str, ...]]:
        words = re.findall(r"\w+", part)
        return set(zip(*(words[start:] for start in range(_TELLING)), strict=False))

    sent = [str(message.get("content") or "") for message in messages]
    return not passages(text).isdisjoint(set[tuple[str, ...]]().union(*map(passages, sent)))


def _base_url(url: str, key_variable: str) -> tuple[str, str]:
    parts = parse_address(url, f"put it into the environment variable {key_variable}")
    path = parts.path.rstrip("/").removesuffix("/chat/completions") or "/v1"
    return f"{parts.scheme}://{parts.netloc}{path}", str(parts.hostname)


def _read_key(variable: str) -> str:
    """Without the line break that a file or a copied key ends with; an HTTP error would show a key that has one."""
    key = os.environ.get(variable, "").strip()
    if not (key.isascii() and key.isprintable()):
        raise UserError(f"{variable}: the key holds a character that no HTTP header can carry; set it again")
    return key or NO_KEY


def _read_reply(content: Any) -> Reply:
    choice = content["choices"][0]
    message, usage = choice["message"], content.get("usage")
    if not isinstance(message, dict):
        raise TypeError("a message is an object")
    tokens = usage.get("completion_tokens") if isinstance(usage, dict) else None
    counted = type(tokens) is int and 0 <= tokens < 1 << 53
    return Reply(message, str(choice.get("finish_reason")), tokens if counted else None)


def _without_half_pairs(content: Any) -> Any:
    """Replace halves of surrogate pairs, which a token limit can leave, and which no UTF-8 request could carry."""
    text = json.dumps(content, ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError:
        return json.loads(text.encode(errors="replace"))
    return content


def _seconds(retry_after: str) -> float:
    try:
        seconds = float(retry_after)
    except ValueError:  # absent, or a date
        return 0.0
    return min(seconds, _LONGEST_RETRY_AFTER_S) if seconds > 0 else 0.0
