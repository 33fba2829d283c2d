"""`estr evaluate` at a scale of the verl engine: the run's last policy, or the model it started from, behind SGLang."""

from __future__ import annotations

from pathlib import Path

from estr.cluster.launch.driver import model_folder
from estr.cluster.launch.server import sglang_server
from estr.config import ClusterRun, Site
from estr.data.read import read_problems
from estr.evaluation.openai_engine import SamplingSettings, load_tokenizer, truncation
from estr.evaluation.standalone import choose_judge, evaluate_on_server
from estr.files.lock import only_writer
from estr.layout import Layout, existing
from estr.provenance import check_files, read_json, write_json
from estr.tasks import prepared_task


def evaluate_warm_start(layout: Layout, config: ClusterRun, site: Site) -> None:
    """Score the model that every run of the task starts from."""
    folder = layout.warm_start(config.task)
    with only_writer(folder):
        _evaluate(layout, config, site, model_folder(config, site), folder)


def evaluate(layout: Layout, config: ClusterRun, site: Site) -> None:
    """Score a finished run's policy."""
    folder = layout.run(config)
    path = existing(folder / "run.json", f"estr train {config.task} {config.label} --seed {config.seed}")
    start = existing(layout.warm_start(config.task) / "evaluation.json", f"estr evaluate {config.task} warm_start")
    with only_writer(folder):
        record = read_json(path)
        check_files(path, "policy/")
        _evaluate(layout, config, site, folder / "policy", folder)
        scores = read_json(folder / "evaluation.json")
        about = {"scale": config.scale, "run_id": config.run_id, "steps": record["steps"]}
        write_json(folder / "evaluation.json", scores | about | {"warm_start": read_json(start)})


def _evaluate(layout: Layout, config: ClusterRun, site: Site, model: Path, folder: Path) -> None:
    data = layout.data(config.task)
    problems = read_problems(existing(data / "eval.parquet", f"estr data prepare {config.task} --scale {config.scale}"))
    task = prepared_task(config.task, data, site.retrievers.get(config.task), truncation(load_tokenizer(model)))
    judged = config.task == "browsecomp_plus"
    judge = choose_judge(task, site.judge_url if judged else None, site.judge_model if judged else None, folder)
    sampling = SamplingSettings(
        temperature=config.evaluation.temperature,
        top_p=1.0,
        max_tokens=config.train.max_tokens,
        dialogue_tokens=config.train.max_tokens,
        seed=config.evaluation.seed,
    )
    gpus, tokens = config.resources.gpus_per_node, config.train.model_tokens
    with sglang_server(model, folder / "server.log", gpus=gpus, model_tokens=tokens) as url:
        evaluate_on_server(
            model,
            task,
            problems,
            url,
            folder,
            k=config.evaluation.samples,
            sampling=sampling,
            judge=judge,
            concurrency=16 * gpus,
        )
