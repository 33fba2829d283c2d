"""verl's SGLang replica, returning the columns that the SGLang plugin of estr (`estr.cluster.sglang`) adds to
`meta_info`.

verl's server reads log-probs out of `meta_info` and drops the rest, so the rest is noted where SGLang hands it over, by
the id of the request. The weight version is verl's `global_steps` when the answer arrives: verl tells SGLang no version
when it pushes weights, but it aborts every request and waits for its answer before a push, so that a segment has one
version. (Not the version when the request was sent: SGLang holds back what arrives during a push.)
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from verl.workers.rollout.replica import RolloutReplica, RolloutReplicaRegistry, TokenOutput

from estr.cluster.meta import ENTROPY
from estr.cluster.verl.columns import FIELD, MissingColumns, TokenColumns

NAME = "sglang"


def install() -> None:
    """Put the subclass under verl's own name, which verl tests for in several places."""
    loader = RolloutReplicaRegistry._registry[NAME]
    if not hasattr(loader, "estr_wraps"):
        load.estr_wraps = loader  # type: ignore[attr-defined]
        RolloutReplicaRegistry.register(NAME, load)


def load() -> type[RolloutReplica]:
    """verl's replica class with our server; imports SGLang."""
    base = load.estr_wraps()  # type: ignore[attr-defined]
    import ray
    from verl.workers.rollout.sglang_rollout import async_sglang_server

    server = recording_server(async_sglang_server.SGLangHttpServer)

    class Replica(base):  # type: ignore[misc, valid-type]
        def __init__(self, *arguments: Any, **named: Any) -> None:
            super().__init__(*arguments, **named)
            self.server_class = ray.remote(server)

    return Replica


def recording_server(base: type) -> type:
    """A subclass of verl's SGLang server whose answers carry `TokenColumns`."""

    class RecordingServer(base):
        async def launch_server(self, *arguments: Any, **named: Any) -> Any:
            result = await super().launch_server(*arguments, **named)
            manager = getattr(self, "tokenizer_manager", None)
            if manager is not None:
                self._meta: dict[str, dict[str, Any]] = {}
                manager.generate_request = noting(manager.generate_request, self._meta)
            return result

        async def generate(
            self, prompt_ids: Any, sampling_params: dict[str, Any], request_id: str, *rest: Any, **named: Any
        ) -> TokenOutput:
            output: TokenOutput = await super().generate(prompt_ids, sampling_params, request_id, *rest, **named)
            version = output.extra_fields.get("global_steps") or 0
            meta = self._meta.pop(request_id, {})
            try:
                output.extra_fields[FIELD] = columns(meta, len(output.token_ids), version)
            except MissingColumns as error:
                output.extra_fields[FIELD] = error
            return output

    RecordingServer.__name__ = RecordingServer.__qualname__ = f"Recording{base.__name__}"
    return RecordingServer


def noting(generate_request: Any, notes: dict[str, dict[str, Any]]) -> Any:
    """SGLang's `generate_request`, noting the `meta_info` of each answer under the request's id."""

    async def generate(request: Any, *rest: Any) -> AsyncIterator[dict[str, Any]]:
        async for answer in generate_request(request, *rest):
            if isinstance(request.rid, str):
                notes[request.rid] = answer.get("meta_info", {})
            yield answer

    return generate


def columns(meta: dict[str, Any], tokens: int, version: int) -> TokenColumns:
    """The columns of a segment of `tokens` tokens, all sampled by `version`.

    Raises:
        MissingColumns: SGLang runs without the plugin, or returned not one entropy per token.
    """
    entropy = meta.get(ENTROPY)
    if entropy is None and tokens:
        raise MissingColumns(
            "SGLang returned no entropy: its plugin `estr` did not load. Install estr beside SGLang on the rollout "
            "nodes; SGLang only logs a plugin that fails, so look for 'estr' in its log"
        )
    if entropy is not None and tokens == 0:
        entropy = []  # verl drops the tokens of an answer whose log-probs do not match
    if len(entropy or []) != tokens:
        raise MissingColumns(f"SGLang returned {len(entropy or [])} entropies for {tokens} tokens")
    return TokenColumns.of(entropy or [], [version] * tokens)
