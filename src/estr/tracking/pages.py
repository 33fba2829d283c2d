"""What a reader of the lab book sees: names, tags and markdown descriptions."""

import shlex
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

from estr.config import Run, load_method
from estr.config.claims import ClaimEntry
from estr.layout import Layout
from estr.provenance import commit
from estr.report.labels import benchmarks, display, task_name
from estr.tracking.catalogue import REPRODUCTION, Catalogue

NOTE = "mlflow.note.content"
"""The tag that MLflow shows as a description, in markdown."""
BY_SCORE = "metrics.`eval/avg_at_4`"
LONGEST_TAG = 8000
"""Characters; MLflow cuts what is longer."""


def parent_name(experiment: str, catalogue: Catalogue) -> str:
    title = "Reproduction" if experiment == REPRODUCTION else catalogue.experiments[experiment].title
    return f"{title} @ {commit()}"


def run_name(config: Run) -> str:
    """For example `GSM8K, ESTR (inter 20), seed 0`."""
    return f"{task_name(config.task)}, {display(config.label)}, seed {config.seed}"


def policy_name(config: Run) -> str:
    """The registered model of all seeds of a run: `estr-laptop-gsm8k-estr`."""
    return f"estr-{config.scale}-{config.task}-{config.label}"


def run_tags(config: Run, catalogue: Catalogue) -> dict[str, str]:
    """By what a run is found. `experiments` and `artifacts` are lists, for `LIKE '%table1%'`."""
    return {
        "kind": "run",
        "scale": config.scale,
        "task": config.task,
        "method": config.method,
        "label": config.label,
        "seed": str(config.seed),
        "overrides": ", ".join(f"{key}={value}" for key, value in config.overrides.items()),
        "engine": config.engine,
        "config_hash": config.hash,
        "run_id": config.run_id,
        "experiments": ", ".join(catalogue.members.get(config.run_id, [])),
        "artifacts": ", ".join(catalogue.artifacts(config.run_id)),
    }


def run_note(config: Run, catalogue: Catalogue, layout: Layout) -> str:
    """What the run is, where its files are, how to make it again, and what it serves."""
    method = load_method(config.method)
    asked = f"{config.staleness.intra} versions within a trajectory, {config.staleness.inter} after it"
    thresholds = ", ".join(f"{key} {value}" for key, value in config.thresholds.items())
    option = "" if config.scale == "laptop" else f" --scale {config.scale}"
    lines = [
        f"**{display(config.label)}** on {benchmarks([config.task], config.scale)}, seed {config.seed}.",
        "",
        "| | |",
        "|---|---|",
        f"| keep rule | {config.rule}, {thresholds or 'no threshold'} ({method.source}) |",
        f"| staleness asked for | {asked} |",
        f"| files | `{layout.run(config)}` |",
        f"| again | `estr train {config.task} {shlex.quote(config.label)} --seed {config.seed}{option}` |",
    ]
    artifacts = catalogue.artifacts(config.run_id)
    if artifacts:
        lines.append(f"| part of | {', '.join(artifacts)} |")
    return _cut("\n".join([*lines, *_claims(catalogue.claims(config), {})]))


def shared_note(note: str, experiment_id: str, run_id: str) -> str:
    """The description of an entry: the run's own, after a link to the place where it is logged in full."""
    return _cut(f"Last values of a run that [is logged in full here]({run_link(experiment_id, run_id)}).\n\n{note}")


def parent_note(
    experiment: str,
    catalogue: Catalogue,
    rows: Mapping[str, Sequence[tuple[str, str]]] | None = None,
    verdicts: Mapping[str, str] | None = None,
    links: Sequence[tuple[str, str]] = (),
) -> str:
    """The description of an experiment's parent run.

    rows: by table, each row's name with the link to its runs. verdicts: by claim id. links: titles and links of saved
    views, or of the other chapters.
    """
    if experiment == REPRODUCTION:
        lines = [
            f"Everything that `snakemake all` made at scale `{catalogue.scale}` from commit `{commit()}`. The report "
            "and the claims scoreboard are among the artifacts, the runs are in the other experiments.",
        ]
    else:
        option = "" if catalogue.scale == "laptop" else f" --config scale={catalogue.scale}"
        found = catalogue.experiments[experiment]
        lines = [
            f"**{found.title}**: {', '.join(found.artifacts)}. Made by `snakemake {experiment}{option}`; tables and "
            "figures are among the artifacts of the run that the others lie below.",
        ]
    if links:
        lines += ["", *(f"- [{title}]({link})" for title, link in links)]
    if experiment in catalogue.experiments:
        lines += _claims(catalogue.experiments[experiment].claims, verdicts or {})
    for table, named in (rows or {}).items():
        if named:
            lines += ["", f"#### {table}: the runs of each row", *(f"- [{name}]({link})" for name, link in named)]
    return _cut("\n".join(lines))


def _claims(claims: Sequence[ClaimEntry], verdicts: Mapping[str, str]) -> list[str]:
    if not claims:
        return []
    lines = ["", "#### Claims of the paper", "| | where | claim | |", "|---|---|---|---|"]
    return lines + [f"| {c.id} | {c.where} | {c.claim} | {verdicts.get(c.id, '')} |" for c in claims]


def _cut(text: str) -> str:
    """Whole lines up to MLflow's limit."""
    if len(text) <= LONGEST_TAG:
        return text
    return text[: LONGEST_TAG - 4].rpartition("\n")[0] + "\n..."


def run_link(experiment_id: str, run_id: str) -> str:
    """Relative to the server, for descriptions."""
    return f"#/experiments/{experiment_id}/runs/{run_id}"


def search_link(experiment_id: str, search: str) -> str:
    """The experiment's runs that a filter leaves, relative to the server; ordered, or MLflow would add their parent."""
    return f"#/experiments/{experiment_id}/runs?searchFilter={quote(search)}&orderByKey={quote(BY_SCORE)}"


def row_name(task: str, label: str, values: Mapping[str, Any]) -> str:
    """A table's row: task, method, and our mean accuracy where the table has one."""
    ours = values.get("ours_avg_percent")
    return f"{task_name(task)}, {display(label)}" + (f": {float(ours):.1f} %" if ours else "")
