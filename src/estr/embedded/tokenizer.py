"""The policy's word-level tokenizer and chat template, stored in the Hugging Face format.

Every word, with the space before it, is an added token of the vocabulary: whatever backend reads `tokenizer.json`
(for a Qwen2 model `transformers` forces its own byte-level one) splits text into the same ids.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path

import jinja2
import torch
from tokenizers import AddedToken, Tokenizer, models
from torch import Tensor

from estr.errors import UserError
from estr.files.atomic import replacing

PAD, START, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
UNKNOWN = "<unk>"
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% set content = message['content'] | trim %}"
    "<|im_start|> {{ message['role'] }}{{ ' ' + content if content }}<|im_end|>"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|> assistant{% endif %}"
)


class ChatTokenizer:
    """Words to ids and back. `pad_id` fills, `end_id` closes a turn.

    A policy's own text is made of its words; of a tool's output, an unknown word becomes `<unk>`.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._template = jinja2.Environment(autoescape=False).from_string(CHAT_TEMPLATE)  # noqa: S701 - text, no HTML
        vocabulary = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
        self.pad_id, self.end_id = (tokenizer.get_vocab()[mark] for mark in (PAD, END))
        self._words = ["" if word in (PAD, START, END) else word for word, _ in vocabulary]
        self._known = set(self._words)
        self.tool_turn = cache(self._tool_turn)

    @classmethod
    def from_words(cls, words: Iterable[str]) -> "ChatTokenizer":
        """A tokenizer for the chat roles and `words`, in that order."""
        tokenizer = Tokenizer(models.BPE({}, []))
        tokenizer.add_special_tokens([AddedToken(mark, special=True) for mark in (PAD, START, END)])
        listed = dict.fromkeys(["system", "user", "assistant", "tool", UNKNOWN, *words])
        tokenizer.add_tokens([AddedToken(f" {word}", normalized=False) for word in listed])
        return cls(tokenizer)

    def __len__(self) -> int:
        return self._tokenizer.get_vocab_size()

    def render(self, messages: Sequence[Mapping[str, str]]) -> str:
        """The prompt text of a chat, ready for the assistant's turn."""
        return self._template.render(messages=messages, add_generation_prompt=True)

    def encode(self, text: str) -> list[int]:
        encoded = self._tokenizer.encode(text)
        if "".join(encoded.tokens) != text:
            raise UserError(f"text holds a word that the policy's vocabulary lacks: {text[:80]!r}")
        ids: list[int] = encoded.ids
        return ids

    def _tool_turn(self, contents: tuple[str, ...]) -> tuple[int, ...]:
        """What follows an assistant turn that called tools: their output, and the opening of the next turn."""
        text = "".join(f"{START} tool{self._readable(content)}{END}" for content in contents)
        return tuple(self.encode(f"{text}{START} assistant"))

    def _readable(self, text: str) -> str:
        return "".join(f" {word}" if f" {word}" in self._known else f" {UNKNOWN}" for word in text.split())

    def encode_dialogue(self, messages: Sequence[Mapping[str, str]]) -> tuple[list[int], list[bool]]:
        """A worked response of assistant and tool messages: its ids, and which of them the policy itself writes."""
        ids: list[int] = []
        own: list[bool] = []
        tool_contents: list[str] = []
        for message in messages:
            if message["role"] == "tool":
                tool_contents.append(message["content"])
                continue
            if ids:
                between = self.tool_turn(tuple(tool_contents))
                ids += between
                own += [False] * len(between)
                tool_contents = []
            turn = [*self.encode(f" {message['content'].strip()}"), self.end_id]
            ids += turn
            own += [True] * len(turn)
        return ids, own

    def decode(self, ids: Sequence[int]) -> str:
        """Text of a response; special tokens are left out."""
        return "".join(self._words[token] for token in ids)

    def pad_left(self, sequences: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
        """Ids and validity, both `[rows, longest]`, padded on the left."""
        longest = max(len(sequence) for sequence in sequences)
        rows = [[self.pad_id] * (longest - len(sequence)) + list(sequence) for sequence in sequences]
        valid = [[False] * (longest - len(sequence)) + [True] * len(sequence) for sequence in sequences]
        return torch.tensor(rows), torch.tensor(valid)

    def save(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        config = {
            "tokenizer_class": "Qwen2Tokenizer",
            "pad_token": PAD,
            "eos_token": END,
            "clean_up_tokenization_spaces": False,
            "chat_template": CHAT_TEMPLATE,
        }
        # servers decode greedily, and past the end of a turn, unless a model folder says otherwise
        plain = {"do_sample": True, "temperature": 1.0, "top_p": 1.0, "top_k": 0}
        ids = {"eos_token_id": self.end_id, "pad_token_id": self.pad_id}
        contents = {
            "tokenizer": self._tokenizer.to_str(pretty=True),
            "tokenizer_config": json.dumps(config, indent=2) + "\n",
            "generation_config": json.dumps(plain | ids, indent=2) + "\n",
        }
        for name, content in contents.items():
            with replacing(folder / f"{name}.json") as new:
                new.write_text(content)

    @classmethod
    def load(cls, folder: Path) -> "ChatTokenizer":
        try:
            return cls(Tokenizer.from_file(str(folder / "tokenizer.json")))
        except Exception as error:
            raise UserError(f"{folder / 'tokenizer.json'}: not a readable tokenizer ({error})") from error
