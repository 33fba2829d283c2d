"""The paper's claims with their predicates, as configs/paper/claims.yaml states them."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import Field, create_model

from estr.config import configs_folder, parse, read_yaml
from estr.config.sections import Section
from estr.errors import UserError
from estr.report.claims.checks import CHECKS
from estr.report.claims.outcome import Outcome


class ClaimEntry(Section):
    """One claim of the file; the texts are those fixed before any run."""

    id: str = Field(pattern=r"^C\d\d$")
    source: str
    where: str
    claim: str
    predicate: str
    testable: str
    check: str
    parameters: dict[str, Any] = Field(default_factory=dict)


class SectionEntry(Section):
    """Claims about one subject of the paper."""

    title: str
    claims: list[dict[str, Any]]


class ClaimsFile(Section):
    """`configs/paper/claims.yaml`."""

    sections: list[SectionEntry]


@dataclass(frozen=True)
class Claim:
    """A claim in its section, and its predicate as a function of the evidence (see `evidence.Evidence`)."""

    section: str
    entry: ClaimEntry
    check: Callable[..., Outcome]


def load_claims(path: Path | None = None) -> list[Claim]:
    """The claims sorted by id, by default those of configs/paper/claims.yaml.

    Raises:
        UserError: the file cannot be read, or a claim has an unknown, missing or malformed key, an unknown check, a
            parameter that its check lacks, or the id of another; names the file and the claim.
    """
    path = path or configs_folder() / "paper" / "claims.yaml"
    claims: dict[str, Claim] = {}
    for section in parse(ClaimsFile, read_yaml(path), str(path)).sections:
        for data in section.claims:
            source = f"{path}, {' '.join(str(data.get('id', section.title)).split())[:60]}"
            entry = parse(ClaimEntry, data, source)
            if entry.id in claims:
                raise UserError(f"{source}: stands twice")
            claims[entry.id] = Claim(section.title, entry, _bound(entry, source))
    return [claims[name] for name in sorted(claims)]


def _bound(entry: ClaimEntry, source: str) -> Callable[..., Outcome]:
    """The check with its parameters, validated by the types of its keyword arguments."""
    if entry.check not in CHECKS:
        raise UserError(f"{source}: key 'check': there is no check '{entry.check}'; there are {', '.join(CHECKS)}")
    check = CHECKS[entry.check]
    wanted = [p for p in inspect.signature(check).parameters.values() if p.kind is p.KEYWORD_ONLY]
    fields: dict[str, Any] = {parameter.name: (parameter.annotation, ...) for parameter in wanted}
    model = create_model(check.__name__, __base__=Section, **fields)
    return partial(check, **parse(model, entry.parameters, f"{source}, parameters").model_dump())
