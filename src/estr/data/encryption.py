"""BrowseComp-Plus's obfuscation: base64 of (UTF-8 text XOR the repeated SHA-256 of a canary text).

The scheme keeps questions and answers out of crawled training data; it is no secret. The canary text itself is not
kept in this repository.
"""

import base64
import binascii
import hashlib
from itertools import cycle


def encrypt(text: str, canary: str) -> str:
    return base64.b64encode(_xor(text.encode(), canary)).decode("ascii")


def decrypt(text: str, canary: str) -> str:
    """The plain text. Raises `ValueError` for what is no base64, and mostly for a wrong canary (no UTF-8 comes out)."""
    try:
        return _xor(base64.b64decode(text, validate=True), canary).decode()
    except binascii.Error as error:
        raise ValueError(f"not base64 ({error})") from error
    except UnicodeDecodeError as error:
        raise ValueError("not UTF-8 once decrypted: the text is damaged, or the canary is another one") from error
    except ValueError as error:  # not ASCII
        raise ValueError(f"not base64 ({error})") from error


def _xor(data: bytes, canary: str) -> bytes:
    key = hashlib.sha256(canary.encode()).digest()
    return bytes(byte ^ mask for byte, mask in zip(data, cycle(key), strict=False))
