"""Table of all claims: what the paper says, what our data say to it."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pandas as pd
from tqdm import tqdm

from estr.report.claims.definitions import Claim, load_claims
from estr.report.claims.evidence import Evidence
from estr.report.claims.outcome import VERDICTS, attempted
from estr.report.views import View, plain, write_table

COLUMNS = ["id", "source", "where", "section", "claim", "predicate", "verdict", "statistic", "runs"]


def claims(folders: Sequence[Path], calibrations: Sequence[Path], out_stem: Path) -> None:
    """Write the scoreboard from all folders of runs, measurements and samples of one scale and its calibrations."""
    frame = claims_frame(load_claims(), Evidence(folders, calibrations))
    write_table(frame, claims_views(frame), out_stem)


def claims_frame(claims: Sequence[Claim], evidence: Evidence) -> pd.DataFrame:
    """A row of COLUMNS per claim; `runs` says what its verdict is from.

    Raises:
        UserError: a file of the results is unreadable, or contradicts another.
    """
    rows = []
    for claim in tqdm(claims, desc="claims", disable=None):
        outcome = attempted(partial(claim.check, evidence))
        texts = claim.entry.model_dump(include={"id", "source", "where", "claim", "predicate"})
        rows.append(
            texts
            | {"section": claim.section, "verdict": outcome.verdict, "statistic": outcome.statistic}
            | {"runs": evidence.take_used()}
        )
    return pd.DataFrame(rows, columns=COLUMNS)


def claims_views(frame: pd.DataFrame) -> list[View]:
    """How many claims of each part of the paper came out how, and every claim, part by part."""
    sections = {str(section): rows for section, rows in frame.groupby("section", sort=False)}
    return [_summary(frame, sections), *(_section(section, rows) for section, rows in sections.items())]


def summary_line(frame: pd.DataFrame) -> str:
    """``20 held, 15 not held, 2 not testable, 1 not computable, 9 no data, of 47 claims``."""
    counts = frame["verdict"].value_counts()
    return ", ".join(f"{counts.get(verdict, 0)} {verdict}" for verdict in VERDICTS) + f", of {len(frame)} claims"


def _summary(frame: pd.DataFrame, sections: dict[str, pd.DataFrame]) -> View:
    rows = [
        (section, *(_count(part, verdict) for verdict in VERDICTS), str(len(part)))
        for section, part in sections.items()
    ]
    rows.append(("All", *(_count(frame, verdict) for verdict in VERDICTS), str(len(frame))))
    meanings = "; ".join(f"{verdict}: {meaning}" for verdict, meaning in VERDICTS.items())
    note = (
        f"{summary_line(frame)}. Claims and predicates were fixed before the reference run and stand in "
        "configs/paper/claims.yaml (commit b9e8bc2); the verdict is that of the predicate, nothing else. "
        f"{meanings[0].upper()}{meanings[1:]}."
    )
    headers = ("Part of the paper", *(verdict.capitalize() for verdict in VERDICTS), "Claims")
    return View("Claims of the paper: scoreboard", note, headers, tuple(rows))


def _count(frame: pd.DataFrame, verdict: str) -> str:
    return str(int((frame["verdict"] == verdict).sum()))


def _section(section: str, rows: pd.DataFrame) -> View:
    cells = tuple(
        (row["id"], f"{row['claim']} ({row['source']}, {row['where']})", row["verdict"], plain(row["statistic"]))
        for _, row in rows.iterrows()
    )
    note = (
        "[a, b]: 95 % interval by bootstrap; of accuracies over problems and seeds, of training metrics over steps and "
        "seeds."
    )
    return View(f"Claims: {section}", note, ("Claim", "The paper says", "Verdict", "Ours"), cells)
