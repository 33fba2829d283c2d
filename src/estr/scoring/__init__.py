"""Answer extraction and rewards: named, versioned, pure functions from a response and a gold answer to a verdict."""

from estr.errors import UserError
from estr.scoring.aime import AIME
from estr.scoring.aime_answer import AIME_ANSWER_OR_BOX
from estr.scoring.browsecomp import BROWSECOMP_PLUS_EXACT, parse_confidence
from estr.scoring.dapo import DAPO_MATH, dapo_answer
from estr.scoring.gsm8k import GSM8K_FLEXIBLE, GSM8K_STRICT
from estr.scoring.search_r1 import SEARCH_R1_EM
from estr.scoring.stream import score_lines
from estr.scoring.verdict import ScoringRule, Verdict

__all__ = [
    "DEFAULT_RULE",
    "RULES",
    "ScoringRule",
    "Verdict",
    "dapo_answer",
    "parse_confidence",
    "score_lines",
    "scoring_rule",
]

RULES: dict[str, ScoringRule] = {
    rule.name: rule
    for rule in (GSM8K_STRICT, GSM8K_FLEXIBLE, DAPO_MATH, AIME, AIME_ANSWER_OR_BOX, SEARCH_R1_EM, BROWSECOMP_PLUS_EXACT)
}

DEFAULT_RULE: dict[str, str] = {
    "dapo_math": "dapo_math",
    "aime": "aime",
    "gsm8k": "gsm8k_strict",
    "search_r1": "search_r1_em",
    "browsecomp_plus": "browsecomp_plus_exact",
}


def scoring_rule(name: str) -> ScoringRule:
    """The rule of that name; a `UserError` that lists the known ones if there is none."""
    if name not in RULES:
        raise UserError(f"'{name}' is no scoring rule; there are {', '.join(sorted(RULES))}")
    return RULES[name]
