import json
import math
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from estr.errors import UserError
from estr.tools.bm25 import BM25Index
from estr.tools.service import open_index

DOCS = [
    ("d0", "The cat sat on the mat."),
    ("d1", "A dog chased the cat; the cat ran."),
    ("d2", "Dogs and cats are animals"),
    ("d3", ""),
]
WORDS = ["a", "b", "c", "d", "e"]
Saved = tuple[BM25Index, Path]


def by_hand(docs: list[list[str]], query: list[str], k1: float, b: float) -> list[float]:
    mean = sum(map(len, docs)) / len(docs)
    scores = []
    for words in docs:
        counts, score = Counter(words), 0.0
        for word in query:
            df = sum(word in other for other in docs)
            idf = math.log(1 + (len(docs) - df + 0.5) / (df + 0.5))
            score += idf * counts[word] / (counts[word] + k1 * (1 - b + b * len(words) / mean))
        scores.append(score)
    return scores


def test_english_words_are_lower_cased_and_stop_words_dropped() -> None:
    index = BM25Index.build(DOCS)
    assert [hit.docid for hit in index.search("CAT", 5)] == ["d1", "d0"]
    assert index.search("cat", 1)[0].text == DOCS[1][1]
    assert index.search("the on a", 5) == []


def test_scores_are_those_of_the_formula() -> None:
    hits = BM25Index.build(DOCS).search("cat", 5)
    # three content words in d0 (cat sat mat), five in d1 (dog chased cat cat ran), three in d2
    docs = [["cat", "sat", "mat"], ["dog", "chased", "cat", "cat", "ran"], ["dogs", "cats", "animals"], []]
    expected = by_hand(docs, ["cat"], 0.9, 0.4)
    assert [hit.score for hit in hits] == pytest.approx([expected[1], expected[0]], rel=1e-5)


@given(
    st.lists(st.lists(st.sampled_from(WORDS), min_size=1, max_size=6), min_size=1, max_size=12),
    st.lists(st.sampled_from([*WORDS, "unknown"]), max_size=4),
    st.integers(1, 5),
)
def test_search_is_the_sorted_head_of_all_scores(docs: list[list[str]], query: list[str], k: int) -> None:
    index = BM25Index.build(
        [(f"d{row}", " ".join(words)) for row, words in enumerate(docs)], k1=1.2, b=0.75, tokenization="whitespace"
    )
    hits = index.search(" ".join(query), k)
    known = [word for word in query if any(word in words for words in docs)]
    scores = by_hand(docs, known, 1.2, 0.75)
    order = sorted(
        (row for row, words in enumerate(docs) if set(words) & set(known)),
        key=lambda row: (-round(scores[row], 4), row),
    )
    assert [hit.score for hit in hits] == pytest.approx([scores[row] for row in order[:k]], rel=1e-4)
    assert [hit.text for hit in hits] == [index.get(hit.docid) for hit in hits]
    # equal documents: in the order of indexing
    positions: dict[str, list[int]] = {}
    for hit in hits:
        positions.setdefault(hit.text, []).append(int(hit.docid[1:]))
    assert all(rows == sorted(rows) for rows in positions.values())


def test_equal_scores_come_in_the_order_of_indexing_also_at_the_cut() -> None:
    docs = [(f"d{row}", "x y" if row % 2 else "x z") for row in range(100)]
    index = BM25Index.build(docs, tokenization="whitespace")
    assert [hit.docid for hit in index.search("x", 7)] == [f"d{row}" for row in range(7)]
    assert [hit.docid for hit in index.search("z", 3)] == ["d0", "d2", "d4"]
    assert len(index.search("z", 60)) == 50


@pytest.mark.parametrize("query", ["", "   ", "unheard of", "\0", "\u202e" * 50, "the"])
def test_a_query_without_a_known_word_finds_nothing(query: str) -> None:
    assert BM25Index.build(DOCS).search(query, 5) == []


def test_no_hits_are_asked_for() -> None:
    assert BM25Index.build(DOCS).search("cat", 0) == []


def test_whitespace_tokenization_keeps_case_and_stop_words() -> None:
    index = BM25Index.build(DOCS, tokenization="whitespace")
    assert [hit.docid for hit in index.search("The", 5)] == ["d0"]
    assert [hit.docid for hit in index.search("cat;", 5)] == ["d1"]


def test_documents_are_found_by_id() -> None:
    index = BM25Index.build(DOCS)
    assert len(index) == 4
    assert index.get("d2") == "Dogs and cats are animals"
    with pytest.raises(KeyError):
        index.get("d9")


@pytest.mark.parametrize(
    ("docs", "message"),
    [
        ([], "no documents to index"),
        ([("a", "x"), ("a", "y")], "document 1: repeated docid 'a'"),
        ([("", "x")], "document 0: empty docid"),
        ([("a", "x\ud800")], "document 0 .*: not Unicode text"),
        ([("a", "the of"), ("b", "")], "no document holds a word"),
    ],
)
def test_unusable_documents_are_refused(docs: list[tuple[str, str]], message: str) -> None:
    with pytest.raises(UserError, match=message):
        BM25Index.build(docs)


@pytest.fixture
def saved(tmp_path: Path) -> Saved:
    chooser = random.Random(0)
    docs = [(f"d/{row}", " ".join(chooser.choices(WORDS, k=4)) + " \u00e9\n\0") for row in range(50)]
    index = BM25Index.build(docs, k1=1.1, b=0.3, tokenization="whitespace")
    index.save(tmp_path / "new" / "index")
    return index, tmp_path / "new" / "index"


def test_a_saved_index_answers_as_before(saved: Saved) -> None:
    index, folder = saved
    loaded = BM25Index.load(folder)
    assert len(loaded) == 50
    for query in ("a", "b c", "\u00e9 d d", ""):
        assert loaded.search(query, 9) == index.search(query, 9)
    assert loaded.get("d/3") == index.get("d/3")
    assert open_index(folder).search("a", 3) == index.search("a", 3)
    note = json.loads((folder / "index.json").read_text())
    assert note["settings"] == {"k1": 1.1, "b": 0.3, "tokenization": "whitespace"}
    assert note["documents"] == 50


def test_saving_again_over_an_index(saved: Saved) -> None:
    _, folder = saved
    BM25Index.build(DOCS).save(folder)
    assert [hit.docid for hit in BM25Index.load(folder).search("cat", 5)] == ["d1", "d0"]


def test_the_folder_holds_no_pickle(saved: Saved) -> None:
    _, folder = saved
    names = sorted(path.name for path in folder.iterdir())
    assert names == sorted([*json.loads((folder / "index.json").read_text())["sha256"], "index.json"])
    assert {name.rsplit(".", 1)[1] for name in names} == {"json", "jsonl", "npy"}
    for path in folder.glob("*.npy"):
        assert b"|O" not in path.read_bytes()[:128]


@pytest.mark.parametrize("name", ["documents.jsonl", "data.csc.index.npy", "vocab.index.json", "params.index.json"])
def test_a_damaged_or_missing_file_is_named(saved: Saved, name: str) -> None:
    _, folder = saved
    content = bytearray((folder / name).read_bytes())
    content[len(content) // 2] ^= 1
    (folder / name).write_bytes(content)
    with pytest.raises(UserError, match=f"{name}: damaged"):
        BM25Index.load(folder)
    (folder / name).unlink()
    with pytest.raises(UserError, match=f"{name}: missing"):
        BM25Index.load(folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": 99}, "format 99, this version reads 1"),
        ({"kind": "dense"}, "not a BM25 index"),
        ({"kind": 5}, "damaged"),
        ({"documents": 51}, "not a BM25 index"),
        ({"documents": "50"}, "damaged"),
        ({"settings": {}}, "not a BM25 index"),
        ({"settings": {"tokenization": "guess"}}, "not a BM25 index"),
        ({"sha256": []}, "damaged"),
        ({"sha256": {}}, "not a BM25 index"),
    ],
)
def test_a_note_that_does_not_fit_is_refused(saved: Saved, change: dict[str, Any], message: str) -> None:
    _, folder = saved
    note = json.loads((folder / "index.json").read_text()) | change
    (folder / "index.json").write_text(json.dumps(note))
    with pytest.raises(UserError, match=message):
        BM25Index.load(folder)


def test_a_folder_without_a_note_is_no_index(saved: Saved, tmp_path: Path) -> None:
    _, folder = saved
    (folder / "index.json").unlink()
    for place in (folder, tmp_path / "nowhere"):
        with pytest.raises(UserError, match="no search index"):
            BM25Index.load(place)
        with pytest.raises(UserError, match="no search index"):
            open_index(place)


def test_an_index_of_unknown_kind_is_refused(saved: Saved) -> None:
    _, folder = saved
    note = json.loads((folder / "index.json").read_text()) | {"kind": "splade"}
    (folder / "index.json").write_text(json.dumps(note))
    with pytest.raises(UserError, match="unknown kind 'splade'"):
        open_index(folder)


def test_an_interrupted_save_leaves_no_index(saved: Saved, monkeypatch: pytest.MonkeyPatch) -> None:
    _, folder = saved
    index = BM25Index.build(DOCS)
    monkeypatch.setattr(index._retriever, "save", lambda *_, **__: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError):
        index.save(folder)
    with pytest.raises(UserError, match="no search index"):
        BM25Index.load(folder)
