"""Search-R1's exact match.

As in Search-R1 and in verl's `search_r1_like_qa_em.py`: the last `<answer>...</answer>`, lower-cased, without ASCII
punctuation and articles, white space squeezed, equal to any accepted answer. One part is left out: verl quarters the
reward of a correct response with more than ten answer tags. A verdict is right or wrong, so such a response is right.
"""

import json
import re
import string

from estr.scoring.verdict import ScoringRule

_OPEN, _CLOSE = "<answer>", "</answer>"
_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_WITHOUT_PUNCTUATION = str.maketrans("", "", string.punctuation)


def tagged_answer(response: str) -> str | None:
    """The content of the last `<answer>...</answer>`; None if there is none or it is blank.

    Pairs are read from the left: of two opening tags before one closing tag the first counts, as in the original.
    """
    answer, end = "", 0
    while (start := response.find(_OPEN, end)) >= 0:
        stop = response.find(_CLOSE, start + len(_OPEN))
        if stop < 0:
            break
        answer, end = response[start + len(_OPEN) : stop], stop + len(_CLOSE)
    return answer.strip() or None


def normalized(answer: str) -> str:
    """Lower case, without punctuation and articles, single spaces."""
    return " ".join(_ARTICLES.sub(" ", answer.lower().translate(_WITHOUT_PUNCTUATION)).split())


def accepted_answers(gold: str) -> list[str]:
    """The texts of a JSON array, numbers as they are written; `[gold]` if it is no array of texts and numbers."""
    if gold.lstrip().startswith("["):
        try:
            answers = json.loads(gold, parse_int=str, parse_float=str, parse_constant=str)
        except (ValueError, RecursionError):
            return [gold]
        if all(isinstance(answer, str) for answer in answers):
            return list(answers)
    return [gold]


def exact_match(answer: str, gold: str) -> bool:
    return normalized(answer) in {normalized(accepted) for accepted in accepted_answers(gold)}


SEARCH_R1_EM = ScoringRule(
    name="search_r1_em",
    version=1,
    source="Search-R1's exact match: the last <answer>...</answer>, normalised, equal to any accepted answer",
    extract=tagged_answer,
    matches=exact_match,
)
