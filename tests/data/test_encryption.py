import base64
import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from estr.data.encryption import decrypt, encrypt

TEXT = st.text(st.characters(exclude_categories=["Cs"]))


@given(TEXT, TEXT)
def test_round_trip(text: str, canary: str) -> None:
    assert decrypt(encrypt(text, canary), canary) == text


def test_the_scheme_by_hand() -> None:
    key = hashlib.sha256(b"canary").digest()
    text = "40 bytes: longer than the 32 of the key."
    by_hand = bytes(byte ^ key[i % 32] for i, byte in enumerate(text.encode()))
    assert encrypt(text, "canary") == base64.b64encode(by_hand).decode()
    assert encrypt("", "canary") == ""


def test_another_canary_gives_no_text() -> None:
    with pytest.raises(ValueError, match="canary is another one"):
        decrypt(encrypt("a question of some length", "one canary"), "another canary")


@pytest.mark.parametrize("text", ["no base64!", "YWJ", "é", "YWJj\n", "YWJj YWJj"])
def test_damaged_base64(text: str) -> None:
    with pytest.raises(ValueError, match="not base64"):
        decrypt(text, "canary")
