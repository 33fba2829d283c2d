"""What the study has to judge claims by, read once and only when a check asks for it."""

from collections.abc import Callable, Collection, Sequence
from functools import cached_property
from pathlib import Path
from typing import TypeVar

from estr.evaluation.paired import PairedDifference
from estr.pipeline.measurement import Measurement, load_measurements
from estr.report.calibrations import MatchedBudget, check_thresholds, read_calibrations
from estr.report.claims.outcome import NoData
from estr.report.claims.spread import SEED
from estr.report.labels import display, task_name
from estr.report.run_rows import Setting, groups_of, overridden
from estr.report.run_views import compact_run_ids
from estr.report.runs import RunResult, load_runs
from estr.report.samples import load_sample
from estr.report.sources import run_folders, sample_folders, throughput_folders
from estr.report.tokens import TokenSource, token_sources

ESTR = "estr"
Runs = TypeVar("Runs", bound=Sequence[RunResult])


class Evidence:
    """The results of one scale. What is asked for and is not there is `NoData`; what was read is remembered."""

    def __init__(self, folders: Sequence[Path], calibrations: Sequence[Path]) -> None:
        self._run_folders = run_folders(folders)
        self._throughput_folders = throughput_folders(folders)
        self._sample_folders = sample_folders(folders)
        self._calibration_files = list(calibrations)
        self._samples: dict[str, list[TokenSource]] = {}
        self._used_runs: dict[str, None] = {}
        self._used_files: dict[str, None] = {}

    def take_used(self) -> str:
        """What was asked for since the last call and is there: run ids without their scale, then files."""
        runs = compact_run_ids(" ".join(self._used_runs)).replace(f"{self.scale}/", "") if self._used_runs else ""
        text = " ".join(filter(None, (runs, *self._used_files)))
        self._used_runs, self._used_files = {}, {}
        return text

    @cached_property
    def runs(self) -> list[RunResult]:
        """Every training run."""
        return load_runs(self._run_folders) if self._run_folders else []

    @property
    def scale(self) -> str:
        return self.runs[0].scale if self.runs else ""

    def trained(self, task: str, label: str) -> list[RunResult]:
        """The runs of one label, one per seed."""
        runs = [run for run in self.runs if (run.task, run.label) == (task, label)]
        if not runs:
            raise NoData(f"no run of {display(label)} on {task_name(task)}")
        return self._note(runs)

    def settings(
        self,
        task: str,
        name: str,
        setting: Callable[[RunResult], Setting | None],
        wanted: Sequence[Setting],
        overrides: Collection[str] = (),
    ) -> dict[Setting, list[RunResult]]:
        """ESTR's runs that change nothing but `name` and `overrides`, by setting: exactly those that are wanted."""
        free = {name, *overrides}
        chosen = [run for run in self.runs if (run.task, run.method) == (task, ESTR) and overridden(run) <= free]
        found = {value: [run for run in chosen if setting(run) == value] for value in wanted}
        missing = [str(value) for value, runs in found.items() if not runs]
        if missing:
            raise NoData(f"no run of {display(ESTR)} on {task_name(task)} at {name} {', '.join(missing)}")
        return {value: self._note(runs) for value, runs in found.items()}

    def difference(self, a: Sequence[RunResult], b: Sequence[RunResult], score: str = "avg") -> PairedDifference:
        """Evaluated score (avg or pass, at k) of a minus that of b in points, paired by seed and problem."""
        groups = groups_of([*a, *b], lambda run: run.label)
        first, second = (groups[runs[0].label].scores for runs in (a, b))
        found = first.difference(second, score, SEED)
        if found is None:
            raise NoData(f"{display(a[0].label)} and {display(b[0].label)} share no seed")
        return found

    def calibration(self, task: str) -> MatchedBudget:
        """The matched budget of a task; its runs must carry its thresholds."""
        budgets = read_calibrations(self._calibration_files, list({run.task: None for run in self.runs}))
        if task not in budgets:
            raise NoData(f"no matched budget of {task_name(task)}")
        check_thresholds([run for run in self.runs if run.task == task], budgets[task])
        self._used_files[f"calibration/{task}.json"] = None
        return budgets[task]

    def throughput(self, task: str, label: str) -> Measurement:
        """The measurement of one label; of several seeds the first."""
        found = [m for m in self._measurements if (m.task, m.label) == (task, label)]
        if not found:
            raise NoData(f"no throughput measurement of {display(label)} on {task_name(task)}")
        chosen = min(found, key=lambda measurement: int(measurement.record["seed"]))
        self._used_files[f"throughput/{task}/{label}/seed{chosen.record['seed']}"] = None
        return chosen

    @cached_property
    def _measurements(self) -> list[Measurement]:
        return load_measurements(self._throughput_folders) if self._throughput_folders else []

    def model_tokens(self, scenario: str) -> list[TokenSource]:
        """Tokens of the language models in that scenario; empty without a sample."""
        if scenario not in self._samples:
            folders = self._sample_folders
            named = [folder for folder in folders if scenario in load_sample(folder).scenarios]
            self._samples[scenario] = token_sources(named, [scenario]) if named else []
        self._used_files |= {f"samples/{source.key}": None for source in self._samples[scenario]}
        return self._samples[scenario]

    def policy_tokens(self) -> list[TokenSource]:
        """Tokens of ESTR's runs at published thresholds, per task; empty without such a run."""
        for source in self._policy_tokens:
            self._note(source.runs)
        return self._policy_tokens

    @cached_property
    def _policy_tokens(self) -> list[TokenSource]:
        folders = [run.path for run in self.runs if run.label == ESTR]
        return token_sources(folders, []) if folders else []

    def _note(self, runs: Runs) -> Runs:
        self._used_runs |= dict.fromkeys(run.run_id for run in runs)
        return runs
