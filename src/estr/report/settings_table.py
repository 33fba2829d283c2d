"""Table 3 (v2: Table 5): the paper's training configuration per task beside that of our runs."""

import csv
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from estr.config import configs_folder
from estr.errors import UserError
from estr.layout import PAPER
from estr.report.labels import benchmarks, task_name
from estr.report.run_views import NOT_REPORTED
from estr.report.runs import RunResult, by_task, load_runs
from estr.report.sources import run_folders
from estr.report.views import EMPTY, View, plain, write_table
from estr.tasks import laptop_counterpart

PAPER_TASKS = ("browsecomp_plus", "dapo_math", "gsm8k", "search_r1")
"""In the order of the paper's columns; the last is v2's."""

FIELDS = ["setting", *PAPER_TASKS, "source"]
ONE_PROCESS = "one process for both"
NONE = "none"

Value = Callable[[RunResult], Any]


def _config(path: str) -> Value:
    """The value of a key of the run's configuration, such as ``train.group``."""

    def value(run: RunResult) -> Any:
        found: Any = run.config
        for key in path.split("."):
            if not isinstance(found, dict) or key not in found:
                raise UserError(f"{run.path / 'run.json'}: field 'config.{path}' is missing")
            found = found[key]
        return found

    return value


def _joined(text: str, *paths: str) -> Value:
    """Several values of the configuration in one text."""
    return lambda run: text.format(*(_config(path)(run) for path in paths))


def _constant(text: str) -> Value:
    return lambda run: text


def _epochs(run: RunResult) -> str:
    steps, prompts, problems = (_config(path)(run) for path in ("train.steps", "train.prompts", "data.train_problems"))
    return f"{steps * prompts / problems:.2g}"


def _turns(run: RunResult) -> int:
    return laptop_counterpart(run.task, _config("counterpart")(run)).limits.turns


OURS: dict[str, Value] = {
    "Policy model": _joined("Qwen2 decoder, {} layers of width {}", "policy.num_hidden_layers", "policy.hidden_size"),
    "Train backend": _constant("PyTorch, float32"),
    "Rollout engine": _constant("own sampler, weights rounded to bfloat16"),
    "Task type": lambda run: "single-turn" if _turns(run) == 1 else "multi-turn tool",
    "Reward": lambda run: run.read_evaluation().scored_by,
    "Total nodes (x 8 H800)": lambda run: f"one machine, {run.machine.get('cores', '?')} cores",
    **dict.fromkeys(("Train nodes", "Rollout nodes", "Train GPUs / Rollout GPUs"), _constant(ONE_PROCESS)),
    **dict.fromkeys(("Actor TP/PP/CP/EP", "Ref TP/PP/CP/EP", "Rollout TP/EP"), _constant(NONE)),
    "Rollout samples n": _config("train.group"),
    "Global batch (prompts)": _config("train.prompts"),
    "Prompt length": _constant("within the model length"),
    "Response length": _config("train.max_tokens"),
    "Max model length": _config("policy.max_position_embeddings"),
    "Max turns": _turns,
    "ESTR tau (default)": lambda run: run.rule.get("tau"),
    "Entropy floor epsilon": lambda run: run.rule.get("eps"),
    "Staleness threshold": _constant("scheduled exactly"),
    "Param-sync interval": _constant("every update"),
    "Partial rollout": _constant("yes"),
    "Rollout mem. util.": _constant(NONE),
    "Epochs": _epochs,
    "Staleness (intra, inter)": lambda run: (
        None if run.method == "sync" else _joined("{}, {}", "staleness.intra", "staleness.inter")(run)
    ),
    "Learning rate": _config("train.learning_rate"),
    "Optimizer": _constant("AdamW"),
    "Clip range (low, high)": _joined("{:.2f}, {:.2f}", "train.clip_low", "train.clip_high"),
    "Loss": _constant("GRPO, token-mean"),
    **dict.fromkeys(("KL penalty", "Entropy bonus"), _constant("0")),
    "Answers per problem (evaluation)": _config("evaluation.samples"),
    "Updates": _config("train.steps"),
    "Training problems": _config("data.train_problems"),
    "Problems (evaluation)": lambda run: len(run.read_evaluation().correct),
    "Warm start": _joined(
        "{} updates of {}, rate {:g}", "pretrain.steps", "pretrain.batch_size", "pretrain.learning_rate"
    ),
    "Weight decay": _config("train.weight_decay"),
    "Gradient norm limit": _config("train.grad_norm_limit"),
    "Sampling temperature": _config("train.temperature"),
    "At a version switch": _config("train.on_switch"),
    "Seeds": lambda run: run.seed,
}
"""By the settings of settings.csv, how a run of the embedded engine has it; None where a run says nothing about it."""


def _gpus(run: RunResult) -> str:
    train, rollout, each = (
        _config(f"resources.{key}")(run) for key in ("train_nodes", "rollout_nodes", "gpus_per_node")
    )
    return f"{train * each} / {rollout * each}"


def _split(model: str) -> Value:
    return _joined(
        "{}/{}/{}/{}", *(f"resources.{model}.{kind}" for kind in ("tensor", "pipeline", "context", "expert"))
    )


OURS_IN_VERL: dict[str, Value] = OURS | {
    "Policy model": _config("policy.model"),
    "Train backend": lambda run: {"megatron": "Megatron", "fsdp2": "FSDP2"}[_config("resources.backend")(run)],
    "Rollout engine": _constant("SGLang"),
    "Task type": lambda run: "single-turn" if run.task == "dapo_math" else "multi-turn tool",
    "Total nodes (x 8 H800)": lambda run: (
        _config("resources.train_nodes")(run) + _config("resources.rollout_nodes")(run)
    ),
    "Train nodes": _config("resources.train_nodes"),
    "Rollout nodes": _config("resources.rollout_nodes"),
    "Train GPUs / Rollout GPUs": _gpus,
    "Actor TP/PP/CP/EP": _split("actor"),
    "Ref TP/PP/CP/EP": _split("reference"),
    "Rollout TP/EP": _joined("{}/{}", "resources.rollout_tensor", "resources.rollout_expert"),
    "Prompt length": _config("train.prompt_tokens"),
    "Max model length": _config("train.model_tokens"),
    "Max turns": _config("train.turns"),
    "Staleness threshold": lambda run: None if run.method == "sync" else _config("train.staleness_threshold")(run),
    "Param-sync interval": lambda run: None if run.method == "sync" else _config("train.sync_interval")(run),
    "Partial rollout": lambda run: None if run.method == "sync" else _constant("yes")(run),
    "Rollout mem. util.": _config("resources.memory_fraction"),
    "Epochs": _config("train.epochs"),
    "Updates": lambda run: run.steps,
    "Training problems": _config("train.train_problems"),
    "Warm start": _constant(NONE),
    "At a version switch": _constant("aborted and resumed, prefix recomputed"),
}
"""The same for a run in verl."""


def table3_settings(folders: Sequence[Path], calibrations: Sequence[Path], out_stem: Path) -> None:
    """Write the table from the runs of the main results; it has no use for a calibration."""
    frame = settings_frame(load_runs(run_folders(folders)), load_paper_settings())
    write_table(frame, settings_views(frame), out_stem)


def load_paper_settings(path: Path | None = None) -> list[dict[str, str]]:
    """The rows of configs/paper/settings.csv in the paper's order; `source` is empty where the paper says nothing.

    Raises:
        UserError: a missing file, wrong columns, or a setting that stands twice or that no run of ours can fill in.
    """
    path = path or configs_folder() / "paper" / "settings.csv"
    try:
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            rows = list(reader)
            if reader.fieldnames != FIELDS:
                raise UserError(f"{path}: the columns must be {','.join(FIELDS)}")
    except OSError as error:
        raise UserError(f"{path}: the paper's settings cannot be read ({error.strerror})") from error
    seen: set[str] = set()
    for line, row in enumerate(rows, start=2):
        if None in row or None in row.values():
            raise UserError(f"{path}, line {line}: wrong number of fields")
        if row["setting"] in seen or row["setting"] not in OURS:
            problem = "stands twice" if row["setting"] in seen else "is not among those that a run of ours has"
            raise UserError(f"{path}, line {line}: '{row['setting']}' {problem}")
        seen.add(row["setting"])
    return rows


def settings_frame(runs: Sequence[RunResult], paper: Sequence[dict[str, str]]) -> pd.DataFrame:
    """A row per setting: paper_<task>, ours_<task> of every task of the paper, `source`.

    Ours are the distinct values over the runs of a task; staleness is that of the asynchronous methods, tau and epsilon
    are ESTR's.

    Raises:
        UserError: a run lacks a setting.
    """
    tasks = by_task(runs)
    rows = []
    for given in paper:
        row = {"scale": runs[0].scale, "setting": given["setting"]}
        for task in PAPER_TASKS:
            row[f"paper_{task}"] = given[task]
            row[f"ours_{task}"] = _ours(tasks.get(task, []), given["setting"])
        rows.append(row | {"source": given["source"]})
    frame = pd.DataFrame(rows)
    for task in PAPER_TASKS:
        frame[f"run_ids_{task}"] = " ".join(run.run_id for run in tasks.get(task, []))
    return frame


def _ours(runs: Sequence[RunResult], setting: str) -> str:
    values = ((OURS_IN_VERL if run.engine == "verl" else OURS)[setting](run) for run in runs)
    return ", ".join(dict.fromkeys(_text(found) for found in values if found is not None))


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def settings_views(frame: pd.DataFrame) -> list[View]:
    """The paper's layout, two columns per task; a task that neither side has anything on is left out."""
    ours = {task: frame[f"ours_{task}"].map(plain).ne(EMPTY).any() for task in PAPER_TASKS}
    groups, headers, columns = [("", 1)], ["Setting"], ["setting"]
    for task in PAPER_TASKS:
        shown = ["Paper", "Ours"] if ours[task] else ["Paper"]
        groups.append((task_name(task), len(shown)))
        headers += shown
        columns += [f"{side.lower()}_{task}" for side in shown]
    rows = tuple(tuple(plain(row[column]) for column in (*columns, "source")) for _, row in frame.iterrows())
    scale, run_tasks = frame["scale"].iloc[0], [task for task in PAPER_TASKS if ours[task]]
    note = (
        f"Paper: v1's Table 3, and below it what its text or v2's says; '{NOT_REPORTED}' where the sources lost it or "
        "give nothing. v2's column Search-R1 is lost but for its model and staleness. "
    )
    if run_tasks:
        counts = ", ".join(
            f"{len(frame[f'run_ids_{task}'].iloc[0].split())} of {task_name(task)}" for task in run_tasks
        )
        note += (
            f"Ours: {benchmarks(run_tasks, scale)}, read from the configurations of the runs at {scale} scale "
            f"({counts}); a setting that differs between them is listed with every value. Staleness is that of the "
            "methods other than sync. Lengths are in tokens"
            f"{'' if scale == PAPER else ', ours of a vocabulary of words'}."
        )
    groups.append(("", 1))
    return [
        View(
            "Table 3 (v2: Table 5): training configuration",
            note.strip(),
            (*headers, "Source"),
            rows,
            groups=tuple(groups),
        )
    ]
