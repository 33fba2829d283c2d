"""Weights from the trainer to the rollout replicas through a file in shared memory."""

import os
import tempfile
from pathlib import Path

import torch
from verl.checkpoint_engine.base import CheckpointEngine, CheckpointEngineRegistry


@CheckpointEngineRegistry.register("shared_file")
class SharedFile(CheckpointEngine):
    def __init__(self, bucket_size, is_master=False, **named):
        self.is_master, self.path = is_master, None

    def prepare(self):
        return {"path": f"/dev/shm/estr-{os.getpid()}.pt"}

    @classmethod
    def build_topology(cls, actor_wg_world_size, rollout_world_size, metadata):
        path = metadata[0]["path"]
        return {"path": [path] * actor_wg_world_size}, {"path": [path] * rollout_world_size}

    def init_process_group(self, path):
        self.path = Path(path)
        if self.is_master:
            self.path.unlink(missing_ok=True)

    def finalize(self):
        if self.is_master and self.path is not None:
            self.path.unlink(missing_ok=True)

    async def send_weights(self, weights, global_steps=None):
        state = {name: weight.detach().float().cpu().clone() for name, weight in weights}
        if self.is_master:
            with tempfile.NamedTemporaryFile(dir=self.path.parent, delete=False) as file:
                torch.save(state, file)
            os.replace(file.name, self.path)

    async def receive_weights(self, global_steps=None):
        import asyncio

        while not self.path.exists():
            await asyncio.sleep(0.02)
        for name, weight in torch.load(self.path, weights_only=True).items():
            yield name, weight
