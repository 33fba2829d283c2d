"""`configs/paper/claims.yaml`: the paper's claims with the predicates that were fixed before the reference run."""

from pathlib import Path
from typing import Any

from pydantic import Field

from estr.config.files import configs_folder, parse
from estr.config.sections import Section
from estr.config.yaml_files import read_yaml
from estr.errors import UserError


class ClaimEntry(Section):
    """One claim of the file; its texts were fixed before the reference run. `experiment` has what decides it."""

    id: str = Field(pattern=r"^C\d\d$")
    source: str
    where: str
    claim: str
    predicate: str
    testable: str
    experiment: str
    check: str
    parameters: dict[str, Any] = Field(default_factory=dict)


class SectionEntry(Section):
    """Claims about one subject of the paper."""

    title: str
    claims: list[dict[str, Any]]


class ClaimsFile(Section):
    """The whole file."""

    sections: list[SectionEntry]


def claims_file() -> Path:
    return configs_folder() / "paper" / "claims.yaml"


def load_claim_entries(path: Path | None = None) -> list[tuple[str, ClaimEntry]]:
    """Every claim with its section's title, in the order of the file, by default configs/paper/claims.yaml.

    Raises:
        UserError: the file cannot be read, or a claim has an unknown, missing or malformed key, or the id of another;
            names the file and the claim.
    """
    path = path or claims_file()
    found: dict[str, tuple[str, ClaimEntry]] = {}
    for section in parse(ClaimsFile, read_yaml(path), str(path)).sections:
        for data in section.claims:
            source = f"{path}, {' '.join(str(data.get('id', section.title)).split())[:60]}"
            entry = parse(ClaimEntry, data, source)
            if entry.id in found:
                raise UserError(f"{source}: stands twice")
            found[entry.id] = section.title, entry
    return list(found.values())
