"""Which experiments need a run, what they make of it, and which of the paper's claims it serves."""

from dataclasses import dataclass, field
from functools import cache

from estr.config import Run, configs_folder, expand, load_any_scale, load_experiment, load_study
from estr.config.claims import ClaimEntry, load_claim_entries

REPRODUCTION = "reproduction"
"""The chapter of the whole: report, scoreboard, and runs that no experiment needs."""
ABOUT_METHODS = ("method", "methods", "other", "others", "reference", "rule", "rules", "stable")
ABOUT_TASKS = ("task", "tasks")


@dataclass(frozen=True)
class Experiment:
    """One file of configs/experiments/ at a scale."""

    name: str
    title: str
    artifacts: tuple[str, ...]
    claims: tuple[ClaimEntry, ...]


@dataclass(frozen=True)
class Catalogue:
    """Experiments by name, those of the report first; `members` has the experiments of every run id, in that order."""

    scale: str
    experiments: dict[str, Experiment]
    members: dict[str, list[str]] = field(repr=False)

    def home(self, run_id: str) -> str:
        """The experiment that logs the run in full."""
        return self.members.get(run_id, [REPRODUCTION])[0]

    def shared(self, run_id: str) -> list[str]:
        """The other experiments that need it."""
        return self.members.get(run_id, [])[1:]

    def artifacts(self, run_id: str) -> list[str]:
        """Names of the tables and figures that are made from the run."""
        return [name for key in self.members.get(run_id, ()) for name in self.experiments[key].artifacts]

    def claims(self, config: Run) -> list[ClaimEntry]:
        """The claims about the run's task and method in the experiments that need the run."""
        keys = self.members.get(config.run_id, ())
        return [claim for key in keys for claim in self.experiments[key].claims if concerns(claim, config)]


def concerns(claim: ClaimEntry, config: Run) -> bool:
    """Whether the claim's parameters speak of the run's task and method; what they leave open, they include."""
    return all(
        named in mentioned or not mentioned
        for named, mentioned in (
            (config.task, _mentioned(claim, ABOUT_TASKS)),
            (config.method, _mentioned(claim, ABOUT_METHODS)),
        )
    )


def _mentioned(claim: ClaimEntry, keys: tuple[str, ...]) -> set[str]:
    values = [claim.parameters[key] for key in keys if key in claim.parameters]
    named = {name for value in values for name in (value if isinstance(value, list) else [value])}
    return {name for name in named if isinstance(name, str)}  # `other` can be a number of versions


@cache
def load_catalogue(scale: str) -> Catalogue:
    """The catalogue of a scale, from configs/.

    Raises:
        UserError: a file of configs/ is not valid.
    """
    study = load_study()
    others = sorted({path.stem for path in (configs_folder() / "experiments").glob("*.yaml")} - set(study.experiments))
    claims = [claim for _, claim in load_claim_entries()]
    engine = load_any_scale(scale).engine
    experiments: dict[str, Experiment] = {}
    members: dict[str, list[str]] = {}
    for name in (*study.experiments, *others):
        found = load_experiment(name)
        if engine not in found.engines:
            continue
        served = tuple(claim for claim in claims if claim.experiment == name)
        experiments[name] = Experiment(name, found.title, (*found.tables, *found.figures), served)
        for run in expand(found.runs, scale):
            members.setdefault(run.run_id, []).append(name)
    return Catalogue(scale, experiments, members)
