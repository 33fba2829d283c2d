"""A policy folder of the embedded engine and its problems. Everything here needs verl's environment."""

import json
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pandas as pd
import pytest
from cpu_scale import laptop_note, tiny_policy

try:
    version("verl")
except PackageNotFoundError:
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture(scope="session")
def policy_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_policy(tmp_path_factory.mktemp("policy"))


@pytest.fixture(scope="session")
def problems(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The laptop's DAPO-Math in verl's columns."""
    from estr.tasks.dapo_math_laptop import DapoMathLaptop

    path = tmp_path_factory.mktemp("data") / "train.parquet"
    pd.DataFrame([problem.row() for problem in DapoMathLaptop().problems("train", 64, 0)]).to_parquet(path)
    return path


@pytest.fixture(scope="session")
def stories(tmp_path_factory: pytest.TempPathFactory):
    """The laptop's GSM8K as a prepared folder which is a policy's folder as well, its tokenizer and its problems."""
    import torch

    from estr.embedded.policy import Policy, PolicyShape, save_policy
    from estr.embedded.tokenizer import ChatTokenizer
    from estr.tasks.gsm8k_laptop import Gsm8kLaptop

    folder = tmp_path_factory.mktemp("gsm8k")
    task = Gsm8kLaptop()
    problems = task.problems("train", 64, 0)
    (folder / "data.json").write_text(json.dumps(laptop_note(task)))
    pd.DataFrame([problem.row() for problem in problems]).to_parquet(folder / "train.parquet")
    tokenizer = ChatTokenizer.from_words(task.vocabulary())
    tokenizer.save(folder)
    policy = Policy(PolicyShape(len(tokenizer), 32, 64, 2, 2, 2, 256)).initialize(0)
    with torch.no_grad():
        policy.get_parameter("model.embed_tokens.weight").mul_(8)
    save_policy(policy, folder)
    return folder, tokenizer, problems
