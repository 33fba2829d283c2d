"""Samples answers from a server that speaks the OpenAI chat-completions protocol, such as SGLang."""

import hashlib
import json
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from estr.errors import UserError
from estr.evaluation.endpoint import PATIENT, ChatEndpoint, Reply, RequestRefused, Retry, ServerUnavailable
from estr.evaluation.sample import FAILED, TOKEN_LIMIT, Sample
from estr.evaluation.workers import in_parallel
from estr.files import strict_json
from estr.tasks.base import Problem, Task
from estr.tools.conversation import Conversation
from estr.tools.hermes import CLOSE, OPEN, ToolCall, render_tool_call

KEY_VARIABLE = "ESTR_SERVER_API_KEY"
PLAIN_SAMPLING = {"top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0}
"""A model's own generation defaults would otherwise apply, and the policy itself would not be what is measured."""
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class SamplingSettings:
    """`max_tokens` bounds one assistant turn, `dialogue_tokens` all turns of a dialogue (tool output not counted)."""

    temperature: float = 1.0
    top_p: float = 1.0
    max_tokens: int = 8192
    dialogue_tokens: int = 32768
    seed: int = 0


PLAIN = SamplingSettings()


class OpenAIEngine:
    """Drives every (problem, sample) as a dialogue over `/v1/chat/completions`, `concurrency` of them at a time.

    Tool calls are taken as the server gives them: structured, or as Hermes text where it has no parser for them.
    Assistant turns go back as they came. `tokenizer` is the policy's; tool output is cut with it.

    A server that is away for up to `retry.patience_s` is waited for. A dialogue that cannot go on after that is a
    sample of status "failed"; after `2 * concurrency` (at least 8) of those in a row the evaluation stops with a
    `UserError`. The key is read from `ESTR_SERVER_API_KEY`.
    """

    label = "OpenAI-compatible server"

    def __init__(
        self,
        url: str,
        model: str,
        task: Task,
        settings: SamplingSettings = SamplingSettings(),
        *,
        tokenizer: Tokenizer | None = None,
        concurrency: int = 16,
        timeout_s: float = 600.0,
        retry: Retry = PATIENT,
    ) -> None:
        self._task, self._settings, self._concurrency = task, settings, concurrency
        self._tokenizer = tokenizer
        optional = PLAIN_SAMPLING | {"seed": settings.seed}
        self._endpoint = ChatEndpoint(
            url, model, key_variable=KEY_VARIABLE, timeout_s=timeout_s, retry=retry, optional=optional
        )
        self._failures = 0  # dialogues that failed since one last succeeded
        self._lock = threading.Lock()

    def answer(self, problems: Sequence[Problem], k: int, wanted: Sequence[int]) -> Iterator[tuple[int, list[Sample]]]:
        """Yields (position in `problems`, its `k` samples) as they finish.

        Raises:
            UserError: the server cannot be reached, does not know the model or the key, or fails again and again.
        """
        jobs = [(position, number) for position in wanted for number in range(k)]
        finished: dict[int, list[Sample]] = {}
        for at, sample in in_parallel(lambda job: self._sample(problems[job[0]], job[1]), jobs, self._concurrency):
            position = jobs[at][0]
            finished.setdefault(position, []).append(sample)
            if len(finished[position]) == k:
                yield position, finished.pop(position)

    def _sample(self, problem: Problem, number: int) -> Sample:
        dialogue = _Dialogue(problem, self._task, self._truncate)
        try:
            while dialogue.status == "running":
                budget = min(self._settings.max_tokens, self._settings.dialogue_tokens - dialogue.tokens)
                if budget < 1:
                    break
                fields = self._fields(problem, number, dialogue.turns, budget)
                reply = self._endpoint.complete(dialogue.messages, dialogue.tools | fields)
                dialogue.take(reply, self._tokens(reply))
        except RequestRefused as error:
            # a first request that the server refuses is no answer; a later one has outgrown its context
            logger.warning("%s %d: the server refuses turn %d (%s)", *_name(problem), dialogue.turns + 1, error)
            return dialogue.sample(TOKEN_LIMIT if dialogue.turns else FAILED)
        except ServerUnavailable as error:
            logger.warning("%s %d: no answer of the server (%s)", *_name(problem), error)
            self._count_failure(error)
            return dialogue.sample(FAILED)
        with self._lock:
            self._failures = 0
        return dialogue.sample(TOKEN_LIMIT if dialogue.status == "running" else dialogue.status)

    def _fields(self, problem: Problem, number: int, turn: int, budget: int) -> dict[str, Any]:
        name = f"{self._settings.seed}/{problem.data_source}/{problem.index}/{number}/{turn}"
        seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4]) >> 1  # servers take 31 bits
        sampling = {"temperature": self._settings.temperature, "top_p": self._settings.top_p}
        return sampling | {"max_tokens": budget, "seed": seed}

    def _tokens(self, reply: Reply) -> int:
        if reply.tokens is not None:
            return reply.tokens
        if self._tokenizer is None:
            raise UserError(f"{self._endpoint.url}: the server does not count tokens; name the model's folder as well")
        return len(self._tokenizer.encode(_text(reply), add_special_tokens=False).ids) + 1

    def _truncate(self, text: str, tokens: int) -> str:
        if self._tokenizer is None:
            raise UserError("tool output is cut in the policy's own tokens: name the model's folder as well")
        return truncation(self._tokenizer)(text, tokens)

    def _count_failure(self, error: Exception) -> None:
        with self._lock:
            self._failures += 1
            if self._failures >= max(8, 2 * self._concurrency):
                raise UserError(
                    f"{self._endpoint.url}: {self._failures} dialogues failed in a row, the last one with: {error}; "
                    "what is finished is saved, and the same command goes on from there"
                )


class _Dialogue:
    """The messages of one dialogue, the state of its tools, and how much of its budget is gone."""

    def __init__(self, problem: Problem, task: Task, truncate: Callable[[str, int], str]) -> None:
        toolbox = task.toolbox(problem)
        self._conversation = Conversation(toolbox, task.limits, truncate)
        self.messages: list[dict[str, Any]] = [dict(message) for message in problem.prompt]
        self.tools: dict[str, Any] = {"tools": toolbox.schemas} if toolbox else {}
        self.tokens = 0
        self._cut: str | None = None  # the text of a turn that the token limit ended

    @property
    def status(self) -> str:
        return TOKEN_LIMIT if self._cut is not None else self._conversation.status

    @property
    def turns(self) -> int:
        return self._conversation.turns

    def take(self, reply: Reply, tokens: int) -> None:
        """Add an assistant turn and the tool messages that answer it."""
        self.tokens += tokens
        text = _text(reply)
        if reply.finish_reason == "length":
            self._cut = text
            return
        outputs = self._conversation.reply(text)
        if outputs is None:
            return
        turn, ids = _assistant_message(reply, text, self.turns, len(outputs))
        self.messages.append(turn)
        self.messages += [
            {"role": "tool", "tool_call_id": name, "content": output} for name, output in zip(ids, outputs, strict=True)
        ]

    def sample(self, status: str) -> Sample:
        state = self._conversation
        return Sample(
            text=state.final if self._cut is None else self._cut,
            turns=state.turns + (self._cut is not None),
            tool_calls=dict(state.tool_calls),
            tool_errors=state.tool_errors,
            tokens=self.tokens,
            status=status,
            documents=state.documents,
        )


def _text(reply: Reply) -> str:
    """The turn as the policy wrote it: structured calls are written out in the Hermes format again."""
    return "\n".join(part for part in (reply.content, *map(_block, _calls(reply))) if part)


def _calls(reply: Reply) -> list[dict[str, Any]]:
    calls = reply.message.get("tool_calls") or []
    return [call for call in calls if isinstance(call, dict)] if isinstance(calls, list) else []


def _block(call: dict[str, Any]) -> str:
    name, arguments = _call(call)
    if _is_well_formed(call):
        return render_tool_call(ToolCall(name, arguments))
    # not a call that a server should have passed on; `parse_tool_calls` tells the policy what is wrong with it
    return f"{OPEN}\n{json.dumps({'name': name, 'arguments': arguments})}\n{CLOSE}"


def _call(call: dict[str, Any]) -> tuple[Any, Any]:
    """Name and arguments of a structured call; the arguments stay text if they are no JSON object."""
    function = call.get("function")
    function = function if isinstance(function, dict) else {}
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            parsed = strict_json.loads(arguments)
        except (ValueError, RecursionError):
            return function.get("name"), arguments
        arguments = parsed if isinstance(parsed, dict) else arguments
    return function.get("name"), arguments


def _assistant_message(reply: Reply, text: str, turn: int, outputs: int) -> tuple[dict[str, Any], list[str]]:
    """The turn to send back, and the ids that its `outputs` tool messages answer.

    As it came, but as plain text if a structured call is malformed: servers that parse the arguments in order to
    render them would refuse the whole dialogue.
    """
    calls = _calls(reply)[:outputs]
    ids = [f"call_{turn}_{number}" for number in range(outputs)]
    message: dict[str, Any] = {"role": "assistant", "content": text}
    if calls and all(map(_is_well_formed, calls)):
        ids[: len(calls)] = [str(call.get("id") or name) for call, name in zip(calls, ids, strict=False)]
        message |= {"content": reply.content, "tool_calls": calls}
    if isinstance(reply.message.get("reasoning_content"), str):
        message["reasoning_content"] = reply.message["reasoning_content"]
    return message, ids


def _is_well_formed(call: dict[str, Any]) -> bool:
    name, arguments = _call(call)
    return isinstance(name, str) and isinstance(arguments, dict)


def _name(problem: Problem) -> tuple[str, int]:
    return problem.data_source, problem.index


def load_tokenizer(model: Path) -> Tokenizer:
    """The tokenizer of a model folder. Raises `UserError` if there is none that can be read."""
    path = model / "tokenizer.json"
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:
        raise UserError(f"{path}: not a readable tokenizer ({error})") from error


def truncation(tokenizer: Tokenizer) -> Callable[[str, int], str]:
    """A function that cuts a text after its first `tokens` tokens; what is left is the text itself, not a decoding."""

    def truncate(text: str, tokens: int) -> str:
        encoded = tokenizer.encode(text, add_special_tokens=False)
        if len(encoded.ids) <= tokens:
            return text
        return text[: encoded.offsets[tokens - 1][1]] if tokens > 0 else ""

    return truncate
