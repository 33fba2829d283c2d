"""Invented data sets in the real ones' schemas and file layouts: what `hf download` would leave, much smaller."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from estr.data.encryption import encrypt
from estr.data.published import SOURCES
from estr.data.sources import Source
from estr.tasks.dapo_math import PREFIX, SUFFIX

CANARY = "an invented canary, of no data set"
GSM8K = {"train": 24, "eval": 21}
RECORDS, COPIES = 22, 100
AIME_ROWS = 20
QUESTIONS, DOCUMENTS = 30, 45
SEARCH_TRAIN = {"nq": 20, "hotpotqa": 25}
SEARCH_EVAL = {
    "nq": 4,
    "triviaqa": 3,
    "popqa": 5,
    "hotpotqa": 3,
    "2wikimultihopqa": 3,
    "musique": 3,
    "bamboogle": 3,
}
PASSAGES = 40

SMALL: dict[str, dict[str, Source]] = {
    "gsm8k": {split: replace(SOURCES["gsm8k"][split], rows=rows) for split, rows in GSM8K.items()},
    "dapo_math": {
        "train": replace(SOURCES["dapo_math"]["train"], rows=RECORDS * COPIES, distinct=RECORDS),
        **{name: replace(SOURCES["dapo_math"][name], rows=AIME_ROWS) for name in ("aime24", "aime25", "aime26")},
    },
    "browsecomp_plus": {
        "questions": replace(SOURCES["browsecomp_plus"]["questions"], rows=QUESTIONS),
        "corpus": replace(SOURCES["browsecomp_plus"]["corpus"], rows=DOCUMENTS),
    },
    "search_r1": {
        "train": replace(SOURCES["search_r1"]["train"], rows=sum(SEARCH_TRAIN.values()), parts=SEARCH_TRAIN),
        "eval": replace(SOURCES["search_r1"]["eval"], rows=sum(SEARCH_EVAL.values()), parts=SEARCH_EVAL),
        "corpus": replace(SOURCES["search_r1"]["corpus"], rows=PASSAGES),
    },
}
"""The published sets' descriptions with the sizes of the invented ones."""

FILES = {
    "gsm8k/train": "openai/gsm8k/main/train-00000-of-00001.parquet",
    "gsm8k/eval": "openai/gsm8k/main/test-00000-of-00001.parquet",
    "dapo_math/train": "BytedTsinghua-SIA/DAPO-Math-17k/data/dapo-math-17k.parquet",
    "dapo_math/aime24": "math-ai/aime24/test-00000-of-00001.parquet",
    "dapo_math/aime25": "aime25/test.jsonl",
    "dapo_math/aime26": "math-ai/aime26/data/train-00000-of-00001.parquet",
    "browsecomp_plus/questions": "browsecomp-plus/data/test-00000-of-00001.parquet",
    "browsecomp_plus/corpus": "Tevatron/browsecomp-plus-corpus/data/train-00000-of-00002.parquet",
    "search_r1/train": "PeterJinGo/nq_hotpotqa_train/train.parquet",
    "search_r1/eval": "PeterJinGo/nq_hotpotqa_train/test.parquet",
    "search_r1/corpus": "PeterJinGo/wiki-18-corpus/wiki-18.jsonl",
}


def write(folder: Path, part: str, rows: list[dict[str, Any]]) -> Path:
    path = folder / FILES[part]
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    else:
        pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=7)
    return path


def write_all(folder: Path) -> None:
    for part, rows in {
        "gsm8k/train": gsm8k("train"),
        "gsm8k/eval": gsm8k("eval"),
        "dapo_math/train": dapo(),
        "dapo_math/aime24": aime("aime24"),
        "dapo_math/aime25": aime("aime25"),
        "dapo_math/aime26": aime("aime26"),
        "browsecomp_plus/questions": browsecomp_questions(),
        "browsecomp_plus/corpus": browsecomp_documents(),
        "search_r1/train": search_r1("train", SEARCH_TRAIN),
        "search_r1/eval": search_r1("test", SEARCH_EVAL),
        "search_r1/corpus": wikipedia(),
    }.items():
        write(folder, part, rows)


def gsm8k(split: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for i in range(GSM8K[split]):
        crates, each = (i + 2, 7) if split == "train" else (i + 2, 600)  # answers above 999 carry a comma
        total = crates * each
        rows.append(
            {
                "question": f"A {split} of the harbour line carries {crates} crates of {each} lemons. How many lemons?",
                "answer": f"It carries {crates}*{each}=<<{crates}*{each}={total}>>{total} lemons.\n#### {total:,}",
            }
        )
    return rows


def dapo_record(number: int) -> dict[str, Any]:
    # the last record asks what the first one asks
    a = 0 if number == RECORDS - 1 else number
    return {
        "data_source": "math_dapo",
        "prompt": [{"content": f"{PREFIX}What is ${a} - {3 * a + 5}$?{SUFFIX}", "role": "user"}],
        "ability": "MATH",
        "reward_model": {"ground_truth": str(a - (3 * a + 5)), "style": "rule-lighteval/MATH_v2"},
        "extra_info": {"index": f"00000000-0000-4000-8000-{number:012d}"},
    }


def dapo() -> list[dict[str, Any]]:
    return [dapo_record(number) for _ in range(COPIES) for number in range(RECORDS)]


def aime(name: str) -> list[dict[str, Any]]:
    rows = []
    for i in range(AIME_ROWS):
        problem, answer = f"({name}) Let $x = {i} + 1$. Find $x^2$.", (i + 1) ** 2
        forms: dict[str, dict[str, Any]] = {
            "aime24": {"id": 60 + i, "problem": problem, "solution": f"\\boxed{{{answer:03d}}}", "url": "https://-"},
            "aime25": {"problem": problem, "answer": str(answer), "id": str(i)},
            "aime26": {"id": i + 1, "problem": problem, "answer": answer},
        }
        rows.append(forms[name])
    return rows


def river(number: int) -> str:
    return f"Ova{number}"


def browsecomp_plain() -> list[dict[str, Any]]:
    return [
        {
            "query_id": str(700 + i),
            "query": f"Which river did the surveyor of lighthouse Quor{i} map in her zeroth year, “né” 0?",
            "answer": river(i),
            "gold_docs": [{"docid": str(5000 + i), "text": "…", "url": "https://-"}],
            "evidence_docs": [
                {"docid": str(5000 + i), "text": "…", "url": "https://-"},
                {"docid": str(5000 + (i + 1) % DOCUMENTS), "text": "…", "url": "https://-"},
            ],
            "negative_docs": [{"docid": str(5000 + (i + 9) % DOCUMENTS), "text": "…", "url": "https://-"}],
        }
        for i in range(QUESTIONS)
    ]


def encrypted(value: Any, canary: str = CANARY) -> Any:
    """Every text of a row but its query_id, as the benchmark does it."""
    if isinstance(value, str):
        return encrypt(value, canary)
    if isinstance(value, list):
        return [encrypted(entry, canary) for entry in value]
    return {key: entry if key == "query_id" else encrypted(entry, canary) for key, entry in value.items()}


def browsecomp_questions() -> list[dict[str, Any]]:
    return [encrypted(row) for row in browsecomp_plain()]


def browsecomp_documents() -> list[dict[str, Any]]:
    return [
        {
            "docid": str(5000 + i),
            "text": f"The lighthouse Quor{i} was surveyed by the one who had mapped the river {river(i)}. " * 3,
            "url": f"https://invented.example/{i}",
        }
        for i in range(DOCUMENTS)
    ]


def search_r1(split: str, parts: dict[str, int]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for name, count in parts.items():
        for i in range(count):
            question = f"who founded the {split} town of {name.title()}by {i}?"
            answers = [f"Founder {name} {i}", f"{name} {i} the Elder"]
            if name == "popqa" and i == count - 1:  # asks what the row before asks, of somebody else
                question = rows[-1]["question"]
            rows.append(
                {
                    "id": f"{split}_{i}",
                    "question": question,
                    "golden_answers": answers,
                    "data_source": name,
                    "prompt": [{"content": f"… Question: {question}\n", "role": "user"}],
                    "ability": "fact-reasoning",
                    "reward_model": {"ground_truth": {"target": answers}, "style": "rule"},
                    "extra_info": {"index": i, "split": split},
                    "metadata": {"level": "easy"} if name == "hotpotqa" else None,
                }
            )
    return rows


def wikipedia() -> list[dict[str, Any]]:
    return [
        {"id": str(i), "contents": f'"Town {i}"\nTown number {i} of Nqby {i} was founded by Founder nq {i}.'}
        for i in range(PASSAGES)
    ]
