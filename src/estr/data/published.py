"""The data sets of the benchmarks as they are published: names, sizes, columns."""

import pyarrow as pa

from estr.data.sources import Source

_TEXT, _NUMBER = pa.string(), pa.int64()
_PARQUET_OR_LINES = ("*.parquet", "data/*.parquet", "*.jsonl", "data/*.jsonl")

_DAPO = Source(
    repo="BytedTsinghua-SIA/DAPO-Math-17k",
    split="train",
    # 100 copies of each record. The records have 17,398 distinct questions, seven of them with two answers.
    rows=1_791_700,
    distinct=17_917,
    repeats=True,
    columns={
        "prompt": pa.list_(pa.struct([("role", _TEXT), ("content", _TEXT)])),
        "reward_model": pa.struct([("ground_truth", _TEXT)]),
        "extra_info": pa.struct([("index", _TEXT)]),
    },
    files=("data/*.parquet", "*.parquet"),
)


def _aime(year: int, answer: str) -> Source:
    return Source(
        repo=f"math-ai/aime{year}",
        split="test",
        rows=30,
        columns={"problem": _TEXT, answer: (_TEXT, _NUMBER)},
        files=_PARQUET_OR_LINES,
    )


def _gsm8k(split: str, rows: int) -> Source:
    return Source(
        repo="openai/gsm8k",
        config="main",
        split=split,
        rows=rows,
        columns={"question": _TEXT, "answer": _TEXT},
        files=(f"main/{split}*.parquet",),
    )


def _search_r1(split: str, parts: dict[str, int]) -> Source:
    return Source(
        repo="PeterJinGo/nq_hotpotqa_train",
        split=split,
        rows=sum(parts.values()),
        parts=parts,
        columns={"id": _TEXT, "question": _TEXT, "golden_answers": pa.list_(_TEXT), "data_source": _TEXT},
        files=(f"{split}*.parquet", f"data/{split}*.parquet"),
        # PopQA asks the same of several people of one name
        repeats=True,
        disagrees=True,
    )


SOURCES: dict[str, dict[str, Source]] = {
    "dapo_math": {
        "train": _DAPO,
        "aime24": _aime(24, "solution"),  # the answer in a box
        "aime25": _aime(25, "answer"),
        "aime26": _aime(26, "answer"),
    },
    "gsm8k": {"train": _gsm8k("train", 7_473), "eval": _gsm8k("test", 1_319)},
    "browsecomp_plus": {
        "questions": Source(
            repo="Tevatron/browsecomp-plus",
            split="test",
            rows=830,
            columns={
                "query_id": (_TEXT, _NUMBER),
                "query": _TEXT,
                "answer": _TEXT,
                "evidence_docs": pa.list_(pa.struct([("docid", _TEXT)])),
            },
            files=("data/test*.parquet", "data/*.parquet", "*.parquet"),
        ),
        "corpus": Source(
            repo="Tevatron/browsecomp-plus-corpus",
            split="train",
            rows=100_195,
            columns={"docid": _TEXT, "text": _TEXT, "url": _TEXT},
            files=("data/*.parquet", "*.parquet"),
            blank=("text", "url"),
        ),
    },
    "search_r1": {
        "train": _search_r1("train", {"nq": 79_168, "hotpotqa": 90_447}),
        "eval": _search_r1(
            "test",
            {
                "nq": 3_610,
                "triviaqa": 11_313,
                "popqa": 14_267,
                "hotpotqa": 7_405,
                "2wikimultihopqa": 12_576,
                "musique": 2_417,
                "bamboogle": 125,
            },
        ),
        # published as a tar archive that is called wiki-18.jsonl.gz
        "corpus": Source(
            repo="PeterJinGo/wiki-18-corpus",
            split="train",
            rows=21_015_324,
            columns={"id": _TEXT, "contents": _TEXT},
            files=("wiki_dump.jsonl", "wiki-18.jsonl", "wiki-18.jsonl.gz"),
        ),
    },
}
"""Of each benchmark, by the set it goes into."""
