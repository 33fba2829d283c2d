"""A client of the rollout servers that keeps what verl's own drops: each segment's entropies and weight versions.

A trajectory that is aborted at a weight update is resumed as a new request. verl's client joins the tokens and log-
probs of these segments and forgets their other fields, so the columns are collected one call further down.

Missing columns travel as the error that says so: raised here it would only make verl try the prompt again, for ever.
The loss raises it, which ends the run.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

from verl.workers.rollout.llm_server import FullyAsyncLLMServerClient, LLMServerClient
from verl.workers.rollout.replica import TokenOutput

from estr.cluster.verl.columns import FIELD, MissingColumns, TokenColumns

_segments: ContextVar[list[TokenOutput] | None] = ContextVar("estr_segments", default=None)


class _Tap(LLMServerClient):
    """Notes every segment that a server returns."""

    async def generate(self, request_id: str, **arguments: Any) -> TokenOutput:
        output = await super().generate(request_id, **arguments)
        segments = _segments.get()
        if segments is not None:
            segments.append(output)
        return output


class _Recording:
    async def generate(self, request_id: str, **arguments: Any) -> TokenOutput:
        segments: list[TokenOutput] = []
        token = _segments.set(segments)
        try:
            output: TokenOutput = await super().generate(request_id, **arguments)  # type: ignore[misc]
        finally:
            _segments.reset(token)
        try:
            output.extra_fields[FIELD] = join(segments, len(output.token_ids))
        except MissingColumns as error:
            output.extra_fields[FIELD] = error
        return output


class RecordingClient(_Recording, _Tap):
    """`LLMServerClient`, for synchronous trainers."""


class RecordingResumingClient(_Recording, FullyAsyncLLMServerClient, _Tap):
    """`FullyAsyncLLMServerClient`, which resumes aborted trajectories."""


def recording(client: LLMServerClient) -> LLMServerClient:
    """The same client, recording. Raises `TypeError` for a client whose way of resuming is unknown."""
    kinds = {LLMServerClient: RecordingClient, FullyAsyncLLMServerClient: RecordingResumingClient}
    kind = kinds.get(type(client))
    if kind is None:
        known = ", ".join(known.__name__ for known in kinds)
        raise TypeError(f"estr records the clients {known} of verl, not {type(client).__name__}")
    twin = kind.__new__(kind)
    twin.__dict__.update(client.__dict__)
    return twin


def join(segments: list[TokenOutput], tokens: int) -> TokenColumns:
    """The columns of a response of `tokens` tokens from its segments.

    Raises:
        MissingColumns: a server returned none, or not one value per token.
    """
    columns = TokenColumns.of([], [])
    for segment in segments:
        found = segment.extra_fields.get(FIELD)
        if isinstance(found, MissingColumns):
            raise found
        if found is None:
            raise MissingColumns(
                "the rollout server returned no per-token entropy. ESTR needs rollout.name=sglang with estr's SGLang "
                "plugin installed on the rollout nodes, and calculate_log_probs=True; see docs/use_in_verl.md"
            )
        if len(found) != len(segment.token_ids):
            raise MissingColumns(f"{len(found)} entropies for {len(segment.token_ids)} tokens of a segment")
        columns = columns.extend(found)
    if len(columns) != tokens:
        raise MissingColumns(f"the segments of a response have {len(columns)} tokens, the response {tokens}")
    return columns
