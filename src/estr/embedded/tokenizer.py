"""The policy's word-level tokenizer and chat template, stored in the Hugging Face format.

Every word, with the space before it, is an added token of the vocabulary: whatever backend reads `tokenizer.json`
(for a Qwen2 model `transformers` forces its own byte-level one) splits text into the same ids.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import jinja2
import torch
from tokenizers import AddedToken, Tokenizer, models
from torch import Tensor

from estr.errors import UserError

PAD, START, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|> {{ message['role'] }} {{ message['content'] }}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|> assistant{% endif %}"
)


class ChatTokenizer:
    """Words to ids and back. `pad_id` fills, `end_id` closes a turn."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._template = jinja2.Environment(autoescape=False).from_string(CHAT_TEMPLATE)
        vocabulary = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
        self.pad_id, self.end_id = (tokenizer.get_vocab()[mark] for mark in (PAD, END))
        self._words = ["" if word in (PAD, START, END) else word for word, _ in vocabulary]

    @classmethod
    def from_words(cls, words: Iterable[str]) -> "ChatTokenizer":
        """A tokenizer for the chat roles and `words`, in that order."""
        tokenizer = Tokenizer(models.BPE({}, []))
        tokenizer.add_special_tokens([AddedToken(mark, special=True) for mark in (PAD, START, END)])
        listed = dict.fromkeys(["system", "user", "assistant", "tool", *words])
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
        self._tokenizer.save(str(folder / "tokenizer.json"))
        config = {
            "tokenizer_class": "Qwen2Tokenizer",
            "pad_token": PAD,
            "eos_token": END,
            "clean_up_tokenization_spaces": False,
            "chat_template": CHAT_TEMPLATE,
        }
        (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")

    @classmethod
    def load(cls, folder: Path) -> "ChatTokenizer":
        try:
            return cls(Tokenizer.from_file(str(folder / "tokenizer.json")))
        except Exception as error:
            raise UserError(f"{folder / 'tokenizer.json'}: not a readable tokenizer ({error})") from error
