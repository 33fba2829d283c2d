"""BrowseComp-Plus's laptop counterpart: questions of several hops over a generated corpus, with a search tool.

    user        Who is the friend of the boss of Ada7 ?
    assistant   <tool_call> {"name": "search", "arguments": {"query": " boss Ada7 "}} </tool_call>
    tool        Ada7 boss Bob3 ; Kim2 boss Ada7 ; Ada7 friend Tom9
    assistant   <tool_call> {"name": "search", "arguments": {"query": " friend Bob3 "}} </tool_call>
    tool        Bob3 friend Eva1 ; Ann5 friend Bob3 ; Bob3 doctor Joe4
    assistant   Exact Answer: Eva1 (next line) Confidence: 70%

Every person has one fact per relation, and each fact is a document whose title is the person. The search tool is the
real benchmark's, over BM25. The reward compares the exact answer: no judge model.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from estr.scoring import ScoringRule, scoring_rule
from estr.tasks.base import TOOL_AGENT, Message, Problem
from estr.tasks.laptop import call_and_output, draw_distinct, first_words
from estr.tools.bm25 import BM25Index
from estr.tools.conversation import Limits
from estr.tools.search import Hit, SearchTool
from estr.tools.toolbox import Toolbox

NAMES = ("Ada", "Ann", "Ben", "Bob", "Eva", "Ida", "Jan", "Joe", "Kim", "Leo", "Max", "Mia", "Ned", "Pia", "Sam", "Tom")
RELATIONS = ("boss", "friend", "doctor", "teacher", "neighbor", "partner", "tailor", "rival", "tenant", "heir")
CALL, CLOSE = '<tool_call> {"name": "search", "arguments": {"query": "', '"}} </tool_call>'
ANSWER, CONFIDENCE = "Exact Answer:", "\nConfidence:"
CALL_TOKENS, FINAL_TOKENS = 5, 5
WORDS_PER_FACT = 3


class Fact(NamedTuple):
    """A document: its text is `{subject} {relation} {object}`, its title the subject."""

    docid: str
    subject: str
    relation: str
    object: str


@dataclass(frozen=True)
class BrowseCompPlusLaptop:
    """`people` x `relations` facts; a question follows `fewest_hops` to `most_hops` of them.

    A demonstration passes over a hop with probability `skip_rate` and follows a wrong relation with probability
    `slip_rate`, and carries on from there. The search tool shows `hits` documents.
    """

    people: int = 400
    relations: int = 8
    fewest_hops: int = 2
    most_hops: int = 4
    hits: int = 3
    skip_rate: float = 0.2
    slip_rate: float = 0.03

    name: str = field(default="browsecomp_plus", init=False)
    version: int = field(default=1, init=False)

    @property
    def rule(self) -> ScoringRule:
        return scoring_rule("browsecomp_plus_exact")

    @property
    def limits(self) -> Limits:
        return Limits(turns=self.most_hops + 2, tool_output_tokens=(WORDS_PER_FACT + 1) * self.hits - 1)

    @property
    def response_tokens(self) -> int:
        """That of the shortest questions: a dialogue that is longer sees every switch as well."""
        output = self.limits.tool_output_tokens + 5
        return self.fewest_hops * (CALL_TOKENS + output) + FINAL_TOKENS

    @cached_property
    def names(self) -> tuple[str, ...]:
        return tuple(f"{NAMES[i % len(NAMES)]}{i // len(NAMES)}" for i in range(self.people))

    @cached_property
    def corpus(self) -> tuple[Fact, ...]:
        """Each relation maps the people onto themselves one to one, nobody to himself."""
        rng = random.Random(f"{self.name}/corpus")
        facts = []
        for relation in RELATIONS[: self.relations]:
            circle = rng.sample(self.names, self.people)
            facts += [(circle[i - 1], relation, person) for i, person in enumerate(circle)]
        return tuple(Fact(f"d{i}", *fact) for i, fact in enumerate(sorted(facts)))

    @cached_property
    def _facts(self) -> dict[tuple[str, str], Fact]:
        return {(fact.subject, fact.relation): fact for fact in self.corpus}

    def documents(self) -> list[tuple[str, str]]:
        """(docid, title and text) of the corpus."""
        return [(f.docid, f"{f.subject}\n{f.subject} {f.relation} {f.object}") for f in self.corpus]

    @cached_property
    def _toolbox(self) -> Toolbox:
        index = BM25Index.build(self.documents(), tokenization="whitespace")
        return Toolbox([SearchTool(index, first_words, k=self.hits, render=_texts)])

    def toolbox(self, problem: Problem) -> Toolbox:
        return self._toolbox

    def problems(self, split: str, count: int, seed: int) -> list[Problem]:
        return [
            Problem(
                prompt=({"role": "user", "content": question},),
                ground_truth=facts[-1].object,
                data_source="browsecomp_plus_laptop",
                ability="search",
                split=split,
                index=index,
                agent=TOOL_AGENT,
                question=question,
                evidence=tuple(fact.docid for fact in facts),
            )
            for index, (question, facts) in enumerate(draw_distinct(self.name, self._question, split, count, seed))
        ]

    def reward(self, response: str, ground_truth: str) -> float:
        return float(self.rule.score(response, ground_truth).correct)

    def vocabulary(self) -> Sequence[str]:
        stated = [_confidence(hops) for hops in range(self.most_hops + 1)]
        relations = RELATIONS[: self.relations]
        return [
            *["Who", "is", "the", "of", "?", ";"],
            *relations,
            *self.names,
            CALL,
            CLOSE,
            ANSWER,
            CONFIDENCE,
            *stated,
        ]

    def demonstration(self, problem: Problem, rng: random.Random) -> list[Message]:
        words = problem.question.split()
        person, relations = words[-2], words[-4:2:-3]
        messages: list[Message] = []
        for relation in relations:
            if rng.random() < self.skip_rate:
                continue
            if rng.random() < self.slip_rate:
                relation = rng.choice(RELATIONS[: self.relations])
            messages += call_and_output(self._toolbox, f"{CALL} {relation} {person} {CLOSE}")
            person = self._facts[person, relation].object
        final = f"{ANSWER} {person} {CONFIDENCE} {_confidence(len(relations))}"
        return [*messages, {"role": "assistant", "content": final}]

    def _question(self, rng: random.Random) -> tuple[str, list[Fact]]:
        person = rng.choice(self.names)
        relations = [
            rng.choice(RELATIONS[: self.relations]) for _ in range(rng.randint(self.fewest_hops, self.most_hops))
        ]
        text = person
        facts: list[Fact] = []
        for relation in relations:
            facts.append(self._facts[facts[-1].object if facts else person, relation])
            text = f"the {relation} of {text}"
        return f"Who is {text} ?", facts


def _texts(hits: Sequence[Hit]) -> str:
    """The documents without their titles: what a policy with a short context can read."""
    return " ; ".join(hit.text.partition("\n")[2] for hit in hits)


def _confidence(hops: int) -> str:
    """What a demonstration states: the more hops, the less sure."""
    return f"{90 - 10 * hops}%"
