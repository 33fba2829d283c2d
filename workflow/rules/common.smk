# Configuration and the input functions of all rules. Every decision is made by estr.config; here are only paths.
from pathlib import Path

from snakemake.exceptions import WorkflowError
from snakemake.utils import validate

import estr.config as settings
from estr.errors import UserError
from estr.layout import PAPER, Layout
from estr.tasks.benchmarks import BENCHMARKS

validate(config, "../schemas/config.schema.yaml")
try:
    STUDY = settings.parse(settings.StudyConfig, config, "configs/config.yaml")
    ENGINE = settings.load_any_scale(STUDY.scale).engine
    FOUND = {
        path.stem: settings.load_experiment(path.stem) for path in sorted(Path("configs/experiments").glob("*.yaml"))
    }
    EXPERIMENTS = {name: experiment for name, experiment in FOUND.items() if ENGINE in experiment.engines}
    REPORTED = {name: experiment for name, experiment in EXPERIMENTS.items() if name in STUDY.experiments}
    for _name in STUDY.experiments:
        settings.load_experiment(_name)  # a name that is no experiment ends here
    RUNS = {name: settings.expand(e.runs, STUDY.scale) for name, e in EXPERIMENTS.items()}
    FRONTIERS = {name: settings.expand(e.frontiers, STUDY.scale) for name, e in EXPERIMENTS.items()}
    MEASUREMENTS = {name: settings.expand(e.measurements, STUDY.scale) for name, e in EXPERIMENTS.items()}
except UserError as error:
    raise WorkflowError(str(error)) from None
SCALE = STUDY.scale
FIRST_SEED = settings.load_any_scale(SCALE).seeds[0]
LAYOUT = Layout(Path(STUDY.results), SCALE)
ROOT, FIGURES = str(LAYOUT.root), f"{STUDY.figures}/{SCALE}"
CLAIMS = f"{ROOT}/tables/claims.csv"
LOGS = f"logs/{SCALE}"
OPTIONS = f"--scale {SCALE} --results {STUDY.results}"
DATA = f"{ROOT}/data/{{task}}"
PUBLISHED = f"{STUDY.results}/{PAPER}/data/{{benchmark}}"
WARM_START = f"{ROOT}/warm_start/{{task}}"
RUN = f"{ROOT}/runs/{{task}}/{{label}}/seed{{seed}}"
RUN_LOGS = f"{LOGS}/runs/{{task}}/{{label}}/seed{{seed}}"
THROUGHPUT = f"{ROOT}/throughput/{{task}}/{{label}}/seed{{seed}}"
SAMPLE = f"{ROOT}/samples/{{sample}}"
FRONTIER = f"{ROOT}/frontier/{{task}}/{{label}}/{{axis}}"


wildcard_constraints:
    task=r"[a-z0-9_]+",
    label=r"[a-z0-9]+(_[a-z0-9]+)*(__[a-z_]+=[A-Za-z0-9.+-]+)*",
    seed=r"\d+",
    benchmark="|".join(BENCHMARKS),
    axis="learning_rate|inter",
    sample=r"[a-z0-9]+",


def run_config_of(task, label, seed=FIRST_SEED):
    try:
        return settings.resolve_any(SCALE, task, label, seed)
    except UserError as error:
        raise WorkflowError(str(error)) from None


def run_config(wildcards):
    return run_config_of(wildcards.task, wildcards.label, int(wildcards.seed))


def published_thresholds(wildcards):
    """What a calibration depends on beside the tokens: ESTR's thresholds and the baselines' shapes."""
    return {name: settings.resolve_any(SCALE, wildcards.task, name, 0).thresholds for name in settings.PROBES}


def run_folders(experiment):
    return [str(LAYOUT.run(run)) for run in RUNS[experiment]]


def throughput_folders(experiment):
    """Throughput is measured on the first seed alone."""
    return list(
        dict.fromkeys(str(LAYOUT.throughput(run)) for run in MEASUREMENTS[experiment] if run.seed == FIRST_SEED)
    )


def sample_folders(experiment):
    samples = EXPERIMENTS[experiment].samples if ENGINE == "embedded" else []
    return [str(LAYOUT.sample(name)) for name in samples]


def frontier_folders(experiment):
    searched = dict.fromkeys((run.task, run.label) for run in FRONTIERS[experiment])
    runs = [run_config_of(task, label) for task, label in searched]
    return [str(LAYOUT.frontier(run, axis)) for run in runs for axis in ("learning_rate", "inter")]


def source_folders(experiment):
    """What the experiment's tables and figures are made from."""
    return [folder for folders in SOURCES for folder in folders(experiment)]


def source_files(experiment):
    return [
        f"{folder}/{name}" for folders, names in SOURCES.items() for folder in folders(experiment) for name in names
    ]


SOURCES = {
    run_folders: ("run.json", "metrics.parquet", "tokens.parquet", "evaluation.json"),
    throughput_folders: ("throughput.json", "steps.parquet", "trajectories.parquet"),
    sample_folders: ("sample.json", "tokens.parquet"),
    frontier_folders: ("frontier.json",),
}


def everywhere(of_experiment):
    """What `of_experiment` gives for any experiment of the report, each once."""
    return sorted({item for experiment in REPORTED for item in of_experiment(experiment)})


def matched_thresholds(wildcards):
    if run_config(wildcards).matched_budget:
        return str(LAYOUT.calibration(wildcards.task))
    return []


def experiment_of(kind, name):
    """The experiment that declares the table or figure `name`."""
    owners = [key for key, experiment in EXPERIMENTS.items() if name in getattr(experiment, kind)]
    if not owners:
        raise WorkflowError(f"no experiment declares the {kind[:-1]} {name!r}")
    return owners[0]


def all_tables():
    return [f"{ROOT}/tables/{name}.csv" for e in REPORTED.values() for name in e.tables]


def all_figures():
    return [f"{FIGURES}/{name}.png" for e in REPORTED.values() for name in e.figures]


def artifact_options():
    tables = " ".join(f"--table {path}" for path in [CLAIMS, *all_tables()])
    return tables + " " + " ".join(f"--figure {path}" for path in all_figures())


def calibrations(experiment):
    return [str(LAYOUT.calibration(run.task)) for run in RUNS[experiment] if run.matched_budget]


def calibration_options(paths):
    return " ".join(f"--calibration {path}" for path in paths)
