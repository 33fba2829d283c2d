"""A rollout replica whose server is a real SGLang in an environment of its own, over HTTP (`ESTR_SGLANG_PYTHON`).

verl's own replica needs a GPU: it hands weights over by CUDA IPC. Here a push writes them to shared memory and SGLang
loads them from there, with the version. `ESTR_TEST_LOG` keeps every answer, and the weights of every version beside it.
"""

import asyncio
import ctypes
import json
import os
import random
import shutil
import signal
import subprocess
from pathlib import Path

import httpx
import ray
from safetensors.torch import save_file
from verl.workers.rollout.base import _ROLLOUT_REGISTRY
from verl.workers.rollout.replica import RolloutReplica, RolloutReplicaRegistry, TokenOutput

from estr.cluster.meta import ENTROPY, WEIGHT_VERSION
from estr.cluster.verl.columns import FIELD, MissingColumns, TokenColumns
from verl_on_cpu.replica import Adapter

NAME = "sglang_http"


def server_name(replica_rank):
    return f"sglang_http_server_{replica_rank}"


def _die_with_parent():
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: a killed test leaves no server behind


class Server:
    def __init__(self, path, response_length):
        self.response_length, self.global_steps = response_length, 0
        self.log = Path(os.environ["ESTR_TEST_LOG"])
        self.log.mkdir(parents=True, exist_ok=True)
        port = random.randint(20_000, 50_000)
        self.url = f"http://127.0.0.1:{port}"
        self.stop = json.loads((Path(path) / "generation_config.json").read_text())["eos_token_id"]
        environment = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHONPATH", "RAY_"))}
        environment |= {"SGLANG_USE_CPU_ENGINE": "1", "OMP_NUM_THREADS": "1"}
        command = [os.environ["ESTR_SGLANG_PYTHON"], "-m", "sglang.launch_server", "--host", "127.0.0.1"]
        command += ["--port", str(port), "--model-path", path, "--device", "cpu", "--dtype", "float32"]
        command += ["--attention-backend", "torch_native", "--skip-tokenizer-init", "--skip-server-warmup"]
        command += ["--context-length", "500", "--max-total-tokens", "8192", "--weight-version", "0"]
        command += ["--max-running-requests", os.environ.get("ESTR_TEST_RUNNING", "6")]
        self.process = subprocess.Popen(
            command,
            env=environment,
            stdout=(self.log / "server.txt").open("w"),
            stderr=subprocess.STDOUT,
            preexec_fn=_die_with_parent,
        )
        self.client = httpx.AsyncClient(base_url=self.url, timeout=300, trust_env=False)

    async def ready(self):
        for _ in range(400):
            assert self.process.poll() is None, (self.log / "server.txt").read_text()[-3000:]
            try:
                if (await self.client.get("/health")).status_code == 200:
                    return
            except httpx.TransportError:
                pass
            await asyncio.sleep(1)
        raise TimeoutError("SGLang did not start")

    async def post(self, path, **body):
        response = await self.client.post(path, json=body)
        response.raise_for_status()
        return response

    async def generate(self, prompt_ids, sampling_params, request_id, **named):
        sampling = dict(sampling_params)
        sampling.pop("logprobs", None)
        limit = sampling.pop("max_tokens", None) or sampling.pop("max_new_tokens", None) or self.response_length
        sampling |= {"max_new_tokens": limit, "stop_token_ids": [self.stop]}
        response = await self.post(
            "/generate", input_ids=list(prompt_ids), return_logprob=True, sampling_params=sampling
        )
        answer, steps = response.json(), self.global_steps  # read when verl's own server reads it
        meta, tokens = answer["meta_info"], answer["output_ids"]
        logprobs = [value for value, _, _ in meta["output_token_logprobs"] or []]
        entropy, version = meta.get(ENTROPY, []), [int(v) for v in meta.get(WEIGHT_VERSION, [])]
        with (self.log / "answers.jsonl").open("a") as file:
            row = {"prompt": list(prompt_ids), "tokens": tokens, "logprob": logprobs, "entropy": entropy}
            row |= {"version": version, "finish": meta["finish_reason"]["type"], "global_steps": steps}
            file.write(json.dumps(row) + "\n")
        try:
            columns = TokenColumns.of(entropy, version)
        except MissingColumns as error:
            columns = error
        return TokenOutput(
            token_ids=tokens,
            log_probs=logprobs,
            stop_reason=meta["finish_reason"]["type"],
            extra_fields={"global_steps": steps, FIELD: columns},
        )

    async def update_weights(self, state, global_steps):
        folder = self.log / f"weights-{global_steps}"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
        update = {"model_path": str(folder), "weight_version": str(global_steps), "flush_cache": True}
        answer = (await self.post("/update_weights_from_disk", **update)).json()
        assert answer["success"], answer
        self.global_steps = global_steps

    async def set_global_steps(self, global_steps):
        self.global_steps = global_steps

    async def abort_all_requests(self, reject_request=False):
        await self.post("/pause_generation", mode="abort")

    async def resume_generation(self):
        await self.post("/continue_generation")

    async def clear_kv_cache(self):
        await self.post("/flush_cache")

    async def nothing(self, *arguments, **named):
        pass

    wake_up = sleep = release_kv_cache = resume_kv_cache = start_profile = stop_profile = nothing


class Replica(RolloutReplica):
    async def launch_servers(self):
        path = self.model_config.get("local_path", None) or self.model_config.path
        handle = (
            ray.remote(Server)
            .options(name=server_name(self.replica_rank), max_concurrency=200, num_cpus=0)
            .remote(path, self.config.response_length)
        )
        await handle.ready.remote()
        self.servers = [handle]
        self._server_handle, self._server_address = handle, f"sglang:{self.replica_rank}"


class HttpAdapter(Adapter):
    server_name = staticmethod(server_name)


RolloutReplicaRegistry.register(NAME, lambda: Replica)
_ROLLOUT_REGISTRY[(NAME, "async")] = "verl_on_cpu.sglang_http.HttpAdapter"
