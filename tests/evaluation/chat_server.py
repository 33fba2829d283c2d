"""A server on 127.0.0.1 that speaks the chat-completions protocol and says what a script tells it to."""

import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response

Body = dict[str, Any]
Script = Callable[[Body], Response | dict[str, Any]]


class ChatServer:
    """`script` gets the body of each completion request, in many threads at once; `bodies` keeps all of them."""

    def __init__(self, script: Script, models: tuple[str, ...] = ("policy",), port: int = 0) -> None:
        self.bodies: list[Body] = []
        self.keys: set[str] = set()
        self.busiest = 0
        busy, lock = 0, threading.Lock()
        app = FastAPI()

        @app.get("/v1/models")
        def list_models() -> dict[str, Any]:
            return {"object": "list", "data": [{"id": name} for name in models]}

        @app.post("/v1/chat/completions")
        def complete(body: Body, request: Request) -> Response:
            nonlocal busy
            with lock:
                self.bodies.append(body)
                self.keys.add(request.headers["authorization"])
                busy += 1
                self.busiest = max(self.busiest, busy)
            try:
                answer = script(body)
            finally:
                with lock:
                    busy -= 1
            return answer if isinstance(answer, Response) else JSONResponse(answer)

        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.bind(("127.0.0.1", port))
        self.port = self._socket.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._server = uvicorn.Server(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=1))
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [self._socket]}, daemon=True)

    def __enter__(self) -> "ChatServer":
        self._thread.start()
        while not self._server.started:
            time.sleep(0.01)
        return self

    def __exit__(self, *exception: object) -> None:
        self._server.should_exit = True
        self._thread.join()
        self._socket.close()

    @property
    def requests(self) -> list[Body]:
        """Bodies of the requests that ask for more than the one token of a test for known fields."""
        return [body for body in self.bodies if body.get("max_tokens") != 1]


def completion(content: str | None, *, tokens: int | None = 5, finish: str = "stop", **message: Any) -> dict[str, Any]:
    """A chat completion as servers send it."""
    usage = {"usage": {"prompt_tokens": 7, "completion_tokens": tokens}} if tokens is not None else {}
    choice = {"index": 0, "finish_reason": finish, "message": {"role": "assistant", "content": content, **message}}
    return {"id": "x", "object": "chat.completion", "choices": [choice], **usage}


def failure(status: int, text: str = "no", **headers: str) -> Response:
    return JSONResponse({"error": {"message": text}}, status, headers)
