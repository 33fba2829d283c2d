r"""What wraps a number in a model's answer: boxes, LaTeX spacing, full-width and invisible characters."""

import re

_BRACES = re.compile(r"\\(?:boxed|fbox)\s*\{|\\[{}]|[{}]")

# NFKC's own mapping of the full-width forms, and no more of NFKC: it would also turn 10² into 102
_CHARACTERS: dict[int, int | str | None] = {wide: wide - 0xFEE0 for wide in range(0xFF01, 0xFF5F)}
_CHARACTERS |= {0x2212: "-", 0x00A0: " ", 0x202F: " ", 0x2009: " ", 0x3000: " "}
# zero-width characters and marks of writing direction
_CHARACTERS |= dict.fromkeys([0x00AD, 0x061C, *range(0x200B, 0x2010), *range(0x202A, 0x202F), *range(0x2060, 0x2070)])
_CHARACTERS |= {0xFEFF: None}
_NARROW_GROUP = re.compile("(?<=[0-9])[\u00a0\u202f\u2009](?=[0-9]{3}(?![0-9]))")

_SPACING = re.compile(r"\\[,!;:]")
_REWRITTEN = ((r"\ ", " "), ("~", " "), ("{,}", ","), (r"\$", "$"), (r"\%", "%"), (r"\left", ""), (r"\right", ""))
_FRACTION_STYLE = re.compile(r"\\[dtc]frac(?![A-Za-z])")


def last_boxed(text: str) -> str | None:
    r"""The content of the last balanced `\boxed{...}` or `\fbox{...}` that is not blank, or None.

    "Last" is by its opening brace, so of nested boxes the innermost. A box that never closes is no box: a response cut
    short in the middle of its last box still states the one before. One pass, no recursion.
    """
    opened: list[int] = []  # where the content of each open box begins; -1 for any other brace
    best = (-1, -1)
    for brace in _BRACES.finditer(text):
        if brace[0] == "}":
            start = opened.pop() if opened else -1
            if start > best[0] and not text[start : brace.start()].isspace() and start < brace.start():
                best = (start, brace.start())
        elif brace[0][0] == "{":
            opened.append(-1)
        elif len(brace[0]) > 2:
            opened.append(brace.end())
    return text[best[0] : best[1]] if best[0] >= 0 else None


def plain_characters(text: str) -> str:
    """Full-width forms as ASCII, the minus sign as a hyphen, 1\u202f000 as 1000, no invisible marks.

    The digits of other scripts and superscripts stay what they are: no rule reads them.
    """
    return _NARROW_GROUP.sub("", text).translate(_CHARACTERS)


def plain_latex(text: str) -> str:
    r"""`text` with plain characters and without LaTeX's spacing: 1\,000 is 1000, 1{,}000 is 1,000, \$ is $."""
    text = _SPACING.sub("", plain_characters(text))
    for before, after in _REWRITTEN:
        text = text.replace(before, after)
    return _FRACTION_STYLE.sub(r"\\frac", text)
