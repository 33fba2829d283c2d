"""BrowseComp-Plus's questions: decrypted into a folder that git ignores, split into training and evaluation."""

import hashlib
import os
import subprocess
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from estr.data.encryption import decrypt
from estr.errors import UserError

CANARY_VARIABLE = "ESTR_BROWSECOMP_PLUS_CANARY"
SPLIT_KEY = "estr/browsecomp_plus/1"
HELD_OUT = 10  # one question in so many

WARNING = (
    "train.parquet and eval.parquet hold BrowseComp-Plus questions and answers in plain text. The benchmark asks that "
    "they never appear in plain text online: do not publish, commit or upload them."
)
SPLIT_NOTE = (
    "The paper trains on 747 of the 830 questions and evaluates on 83, but which ones is not public. Here the 83 are "
    f"those with the smallest SHA-256 of '{SPLIT_KEY}/<query_id>'. So scores are on other questions than the paper's."
)


def canary_text(canary: str | None) -> str:
    """The canary given, or that of the environment. Raises `UserError` that says where to find it."""
    text = (canary or os.environ.get(CANARY_VARIABLE, "")).strip()
    if not text:
        raise UserError(
            f"browsecomp_plus: the questions are encrypted; set {CANARY_VARIABLE} to the canary text that they are "
            "published with, DEFAULT_CANARY in scripts_build_index/decrypt_dataset.py of "
            "https://github.com/texttron/BrowseComp-Plus (it is not repeated here, so that crawlers can filter by it)"
        )
    return text


def require_ignored(folder: Path) -> None:
    """Raises `UserError` if `folder` lies in a git work tree that does not ignore it."""
    absolute = folder.absolute()
    existing = next(path for path in (absolute, *absolute.parents) if path.is_dir())
    if not any((path / ".git").exists() for path in (existing, *existing.parents)):
        return
    file = str(absolute / "train.parquet")
    try:
        asked = subprocess.run(["git", "-C", str(existing), "check-ignore", "-q", file], capture_output=True, text=True)
    except OSError as error:
        raise UserError(f"{folder}: cannot ask git whether it ignores this folder ({error.strerror})") from error
    if asked.returncode == 1:
        raise UserError(
            f"{folder}: git does not ignore this folder, and BrowseComp-Plus in plain text must not be committed; "
            "write below results/, or add the folder to .gitignore"
        )
    if asked.returncode:
        raise UserError(f"{folder}: git cannot say whether it ignores this folder ({asked.stderr.strip()})")


def decrypted(row: Mapping[str, Any], canary: str) -> dict[str, Any]:
    """query_id, query and answer in plain text, and the docids of the evidence.

    Raises `ValueError` naming query and field.
    """

    def plain(field: str, text: str | None) -> str:
        try:
            return decrypt(text or "", canary)
        except ValueError as error:
            raise ValueError(f"{field} of query {row['query_id']}: {error}") from error

    query, answer = plain("query", row["query"]), plain("answer", row["answer"])
    evidence = [plain("evidence_docs.docid", entry["docid"]) for entry in row["evidence_docs"]]
    if not (query.strip() and answer.strip() and evidence and all(evidence)):
        raise ValueError(f"query {row['query_id']}: question, answer or evidence is empty")
    return {
        "query_id": str(row["query_id"]),
        "query": query,
        "answer": answer,
        "evidence": list(dict.fromkeys(evidence)),
    }


def held_out(query_ids: Collection[str]) -> frozenset[str]:
    """The tenth of the questions that is kept for evaluation; it depends on the ids alone, not on their order."""
    ranked = sorted(query_ids, key=lambda query_id: hashlib.sha256(f"{SPLIT_KEY}/{query_id}".encode()).digest())
    return frozenset(ranked[: round(len(ranked) / HELD_OUT)])
