"""A scale of the verl engine that a machine without a GPU trains in minutes, in a workspace of its own."""

import json
import os
import shutil
from dataclasses import fields
from pathlib import Path
from typing import Any

import pandas as pd
import yaml
from verl_runs import HERE, REPOSITORY, common_settings, verl_environment

PORT = 6479


def tiny_policy(folder: Path) -> Path:
    """As `estr pretrain` leaves it, without the training; its head is large, so that entropies vary."""
    import torch

    from estr.embedded.policy import Policy, PolicyShape, save_policy
    from estr.embedded.tokenizer import ChatTokenizer
    from estr.tasks.dapo_math_laptop import DapoMathLaptop

    tokenizer = ChatTokenizer.from_words(DapoMathLaptop().vocabulary())
    shape = PolicyShape(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=512,
    )
    policy = Policy(shape).initialize(0)
    with torch.no_grad():
        policy.get_parameter("model.embed_tokens.weight").mul_(8)
    save_policy(policy, folder)
    tokenizer.save(folder)
    return folder


def make_workspace(policy: Path, folder: Path) -> Path:
    """Scale `cpu` trains the policy for six updates, two per weight version."""
    from estr.tasks.dapo_math_laptop import DapoMathLaptop

    configs = folder / "configs"
    shutil.copytree(REPOSITORY / "configs", configs)
    (configs / "scales" / "cpu.yaml").write_text(yaml.safe_dump(cpu_scale(policy)))
    site = yaml.safe_load((configs / "site.yaml").read_text())
    site |= {"ray_port": PORT, "cores": 32, "verl_settings": cpu_settings(folder), "retrievers": {}}
    environment = verl_environment(folder, "verl_on_cpu,estr.cluster.verl")
    site["environment"] = {key: value for key, value in environment.items() if os.environ.get(key) != value}
    (configs / "site.yaml").write_text(yaml.safe_dump(site))
    data = folder / "results" / "cpu" / "data" / "dapo_math"
    data.mkdir(parents=True)
    for split, count in {"train": 32, "eval": 8}.items():
        rows = [problem.row() for problem in DapoMathLaptop().problems(split, count, 0)]
        pd.DataFrame(rows).to_parquet(data / f"{split}.parquet")
    (data / "data.json").write_text(json.dumps(laptop_note(DapoMathLaptop())))
    return folder


def laptop_note(task: Any) -> dict:
    """`data.json` of a laptop counterpart: what it was prepared with."""
    chosen = {item.name: getattr(task, item.name) for item in fields(task) if item.init}
    return {"task": task.name, "counterpart": chosen}


def cpu_scale(policy: Path) -> dict:
    paper = yaml.safe_load((REPOSITORY / "configs" / "scales" / "paper.yaml").read_text())
    train = paper["train"] | {
        "epochs": 1,
        "train_problems": 24,
        "prompts": 4,
        "group": 4,
        "learning_rate": 3e-3,
        "prompt_tokens": 32,
        "max_tokens": 24,
        "model_tokens": 56,
        "staleness_threshold": 1,
        "sync_interval": 2,
        "save_every": 1,
        "tokens_every": 1,
    }
    resources = paper["resources"] | {
        "backend": "fsdp2",
        "gpus_per_node": 1,
        "train_nodes": 1,
        "rollout_nodes": 1,
        "actor": {},
        "reference": {},
        "rollout_tensor": 1,
        "rollout_expert": 1,
        "memory_fraction": 0.5,
        "tokens_per_gpu": 512,
        "hours": 1,
    }
    tasks = {"dapo_math": {"reported": False, "policy": {"model": str(policy)}}}
    return paper | {"train": train, "resources": resources, "tasks": tasks}


def cpu_settings(folder: Path) -> list[str]:
    """What a machine without a GPU needs of verl, and a reward with spread."""
    common = common_settings(folder, folder, folder, "estr")
    start = common.index("trainer.device=cpu")
    machine = [s for s in common[start:] if not s.startswith(("trainer.n", "+ray_kwargs", "ray_kwargs"))]
    return [
        *machine,
        "actor_rollout_ref.rollout.name=transformers",
        "actor_rollout_ref.rollout.checkpoint_engine.backend=shared_file",
        f"reward.custom_reward_function.path={HERE / 'reward.py'}",
        "reward.custom_reward_function.name=compute_score",
        "data.dataloader_num_workers=0",
    ]
