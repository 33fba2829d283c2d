import json
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from estr.scoring import RULES, Verdict
from estr.scoring.search_r1 import accepted_answers, normalized

RULE = RULES["search_r1_em"]


@pytest.mark.parametrize(
    ("response", "gold", "extracted", "correct"),
    [
        ("<answer>Paris</answer>", "Paris", "Paris", True),
        ("<answer> Paris\n</answer> done", "paris", "Paris", True),
        ("<answer>The Beatles!</answer>", "Beatles", "The Beatles!", True),
        ("<answer>U.S.A.</answer>", "usa", "U.S.A.", True),
        ("<answer>an  apple   a day</answer>", "apple day", "an  apple   a day", True),
        ("<answer>theatre</answer>", "atre", "theatre", False),
        ("<answer>1,000</answer>", "1000", "1,000", True),
        ("<answer>Paris, France</answer>", "Paris", "Paris, France", False),
        ("<answer>London</answer> no, <answer>Paris</answer>", "Paris", "Paris", True),
        ("<answer>Paris</answer> no, <answer>London</answer>", "Paris", "London", False),
        ("<answer>Paris</answer> <answer>London", "Paris", "Paris", True),
        ("<answer>x <answer>Paris</answer>", "Paris", "x <answer>Paris", False),
        ("<answer>New\nYork</answer>", "New York", "New\nYork", True),
        ("<answer></answer>", "Paris", None, False),
        ("<answer> </answer>", "", None, False),
        ("Paris", "Paris", None, False),
        ("</answer>Paris<answer>", "Paris", None, False),
        ("<Answer>Paris</Answer>", "Paris", None, False),
        # several accepted answers
        ("<answer>NYC</answer>", '["New York City", "NYC"]', "NYC", True),
        ("<answer>Boston</answer>", '["New York City", "NYC"]', "Boston", False),
        ("<answer>1999</answer>", "[1999]", "1999", True),
        ("<answer>1.50</answer>", '["x", 1.50]', "1.50", True),
        ("<answer>x</answer>", "[]", "x", False),
        ("<answer>[1, 2</answer>", "[1, 2", "[1, 2", True),
        ("<answer>null</answer>", "[null]", "null", True),  # no array of answers: a text with brackets
        # more than ten tags: verl gives a quarter, a verdict has no quarters
        ("<answer>Paris</answer>" * 11, "Paris", "Paris", True),
        ("<answer>Zürich</answer>", "Zurich", "Zürich", False),
        ("<answer>Pa\0ris</answer>", "Paris", "Pa\0ris", False),
    ],
)
def test_exact_match(response: str, gold: str, extracted: str | None, correct: bool) -> None:
    assert RULE.score(response, gold) == Verdict(extracted, correct)


@given(st.text())
def test_the_normal_form_holds_no_capital_punctuation_article_or_spare_space(text: str) -> None:
    form = normalized(text)
    assert not set(form) & set(string.punctuation + string.ascii_uppercase)
    assert not {"a", "an", "the"} & set(form.split(" "))
    assert form == " ".join(form.split())


@given(
    st.lists(st.text(max_size=10), min_size=1, max_size=4),
    st.text(string.ascii_letters, min_size=1, max_size=10),
    st.sampled_from(["{}", "**{}**", '"{}"', "The {}.", "\n {} \n"]),
)
def test_any_accepted_answer_will_do(others: list[str], answer: str, wrapper: str) -> None:
    gold = json.dumps([*others, answer])
    assert accepted_answers(gold) == [*others, answer]
    assert RULE.score(f"<answer>{wrapper.format(answer)}</answer>", gold).correct
