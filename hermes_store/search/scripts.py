"""Scripts and spellings: which characters make words, and which texts count as the same.

Two kinds of writing are told apart. *Spaced* scripts put blanks between words; SQLite's ``unicode61`` tokenizer cuts
them rightly, and a word is found whole. *Unspaced* scripts (Han, Kana, Bopomofo, Hangul, Thai, Lao, Khmer, Myanmar) run
on, and a term is found anywhere within. Each kind has one folding, used by every route, by verification and by
snippets, so that a text means the same on all of them:

* `fold_words` is what ``unicode61`` does (measured over all code points of SQLite 3.40 and 3.53): case, and one
  diacritic over an ASCII letter. Characters younger than Unicode 6.1 are the exception; SQLite takes them as they are.
* `fold_width` is NFKC and case.

An index holds texts as they were written, so a query is tried in the spellings (`spellings`) that folding would equate.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from collections.abc import Iterator

# First and last code point. Digits and punctuation of these scripts are left out: digits are words anywhere.
_UNSPACED_RANGES = (
    (0x0E01, 0x0E3A),
    (0x0E40, 0x0E4E),  # Thai
    (0x0E81, 0x0ECF),
    (0x0EDC, 0x0EDF),  # Lao
    (0x1000, 0x103F),
    (0x1050, 0x108F),
    (0x109A, 0x109D),
    (0xA9E0, 0xA9EF),
    (0xA9FA, 0xA9FE),
    (0xAA60, 0xAA7F),  # Myanmar
    (0x1100, 0x11FF),
    (0x3131, 0x318E),
    (0xA960, 0xA97C),
    (0xAC00, 0xD7A3),
    (0xD7B0, 0xD7FB),
    (0xFFA0, 0xFFDC),  # Hangul
    (0x1780, 0x17D3),
    (0x17D7, 0x17D7),
    (0x17DC, 0x17DD),
    (0x1980, 0x19C9),  # Khmer, New Tai Lue
    (0x2E80, 0x2FDF),
    (0x3005, 0x3007),
    (0x3021, 0x3029),
    (0x3031, 0x3035),
    (0x3038, 0x303C),
    (0x3190, 0x319F),
    (0x31C0, 0x31E3),
    (0x3400, 0x4DBF),
    (0x4E00, 0x9FFF),
    (0xF900, 0xFAFF),
    (0x20000, 0x3FFFD),  # Han
    (0x3041, 0x309F),
    (0x30A1, 0x30FA),
    (0x30FC, 0x30FF),
    (0x31F0, 0x31FF),
    (0xFF66, 0xFF9F),
    (0x1AFF0, 0x1B16F),  # Kana
    (0x3105, 0x312F),
    (0x31A0, 0x31BF),  # Bopomofo
)  # fmt: skip - one script a line reads better

# Punctuation of the unspaced scripts: it separates terms wherever it stands, and is never part of one.
_STOP_RANGES = (
    (0x3000, 0x3004), (0x3008, 0x3020), (0x302A, 0x3030), (0x3036, 0x3037), (0x303D, 0x303F), (0x30A0, 0x30A0),
    (0x30FB, 0x30FB), (0xFE10, 0xFE1F), (0xFE30, 0xFE4F), (0xFE50, 0xFE6F), (0xFF01, 0xFF0F), (0xFF1A, 0xFF20),
    (0xFF3B, 0xFF40), (0xFF5B, 0xFF65), (0xFFE0, 0xFFEE), (0x104A, 0x104B), (0x17D4, 0x17D6), (0x17D8, 0x17DA),
    (0x0E5A, 0x0E5B),
)  # fmt: skip


def _members(ranges: tuple[tuple[int, int], ...]) -> str:
    return "".join(f"{chr(first)}-{chr(last)}" for first, last in ranges)


#: Members of regular-expression classes, to be put in brackets.
UNSPACED = _members(_UNSPACED_RANGES)
STOPS = _members(_STOP_RANGES)

#: No unspaced script begins before this character.
UNSPACED_START = chr(_UNSPACED_RANGES[0][0])

#: A letter or digit as ``unicode61`` sees it (``\w`` without the underscore).
LETTER = r"[^\W_]"
#: What stands between two words: no letter, no digit.
GAP = r"[\W_]"

# Full-width punctuation, and characters of no other use (tags) that stand for it in folded texts.
_WIDE_SIGN = re.compile("[\uff01-\uff0f\uff1a-\uff20\uff3b-\uff40\uff5b-\uff65]")
_WIDE_SIGNS_KEPT = 0xE0000
#: The same members as `STOPS`, as folding by width leaves them.
FOLDED_STOPS = STOPS + "".join(chr(_WIDE_SIGNS_KEPT + low) for low in range(0x01, 0x66))

_HAS_UNSPACED = re.compile(f"[{UNSPACED}]")
_RUNS = re.compile(rf"(?:{LETTER}|[{UNSPACED}])+")

# The combining marks that unicode61 drops; every other mark separates words.
_DROPPED_MARKS = frozenset(
    [*range(0x300, 0x305), *range(0x306, 0x30D), 0x30F, 0x311, 0x31B, *range(0x323, 0x329), 0x32D, 0x32E, 0x330, 0x331]
)
_ASCII_END = 0x80

# A text of these and ASCII alone has only case to fold, and Python folds that many times faster: general punctuation,
# arrows to dingbats, Han, Kana, Hangul and their punctuation, Thai to Lao, full-width signs, emoji.
_CASELESS_RANGES = (
    (0x00, 0x7F), (0x0E01, 0x0EFF), (0x2010, 0x205E), (0x2190, 0x23FF), (0x2500, 0x27BF), (0x2E80, 0xA4CF),
    (0xAC00, 0xD7A3), (0xF900, 0xFAFF), (0xFE30, 0xFE4F), (0xFF01, 0xFF20), (0xFF5B, 0xFFEE), (0x1F300, 0x1FAFF),
    (0x20000, 0x3FFFD),
)  # fmt: skip
_BEYOND_CASELESS = re.compile(f"[^{_members(_CASELESS_RANGES)}]")

_COMPATIBILITY_RANGES = (
    (0x0E33, 0x0E33), (0x0EB3, 0x0EB3), (0x0EDC, 0x0EDD), (0x2E9F, 0x2EF3), (0x2F00, 0x2FD5), (0x3131, 0x318E),
    (0x3200, 0x33FF), (0xF900, 0xFAD9), (0xFFA0, 0xFFDC), (0x2F800, 0x2FA1D),
)  # fmt: skip

_FULL_WIDTH = {code: code + 0xFEE0 for code in range(0x21, 0x7F)}


class _WordFold(dict[int, str]):
    """A translation table that is computed character by character, as texts need it."""

    def __missing__(self, code: int) -> str:
        folded = self[code] = _fold_character(code)
        return folded


_WORD_FOLD = _WordFold()


def has_unspaced(text: str) -> bool:
    """Tell whether a text has a character of an unspaced script.

    Args:
        text: Any text.
    """
    return not text.isascii() and _HAS_UNSPACED.search(text) is not None


def runs(text: str) -> list[str]:
    """Cut a text into its runs of letters and digits (marks of unspaced scripts included), in order.

    Args:
        text: A text, folded or not.
    """
    return _RUNS.findall(text)


def fold_words(text: str) -> str:
    """Fold case and diacritics as ``unicode61`` does; at most one character for each one of the text.

    Args:
        text: Any text.
    """
    if text.isascii() or not _BEYOND_CASELESS.search(text):
        return text.lower()
    return text.translate(_WORD_FOLD)


def fold_width(text: str) -> str:
    """Fold width (NFKC) and case, the folding of unspaced scripts.

    Args:
        text: Any text.
    """
    if text.isascii():
        return text.lower()
    return unicodedata.normalize("NFKC", _WIDE_SIGN.sub(_kept_apart, text)).casefold()


def folded_sign(sign: str) -> str:
    """Give what the full-width form of an ASCII sign is in folded texts.

    Args:
        sign: The sign.
    """
    return fold_width(chr(ord(sign) + 0xFEE0))


def _kept_apart(sign: re.Match[str]) -> str:
    """Full-width punctuation separates terms, and would be ASCII punctuation after NFKC, which does not."""
    return chr(_WIDE_SIGNS_KEPT + (ord(sign[0]) & 0xFF))


@functools.lru_cache(maxsize=1024)
def spellings(text: str) -> tuple[str, ...]:
    """Name the ways in which a text may be stored that folding equates but an index does not.

    Args:
        text: A term as it was typed.

    Returns:
        The composed form first, then the text as typed and the decomposed, compatibility, full-width and half-width
        forms, as far as they differ.
    """
    plain = unicodedata.normalize("NFKC", text)
    forms = (
        unicodedata.normalize("NFC", text),
        text,  # compatibility ideographs have no normal form of their own
        unicodedata.normalize("NFD", text),
        plain,
        unicodedata.normalize("NFD", plain),
        plain.translate(_FULL_WIDTH),
        _half_width(plain),
        *_mixed_widths(plain),
        *_compatible(plain),
    )
    return tuple(dict.fromkeys(forms))


def _mixed_widths(text: str) -> Iterator[str]:
    """Beside an unspaced script, letters may be narrow and digits wide, or the other way round."""
    if not has_unspaced(text):
        return
    for wide in (str.isalpha, str.isdigit):
        yield "".join(
            chr(_FULL_WIDTH[ord(character)]) if character.isascii() and wide(character) else character
            for character in text
        )


def _compatible(text: str) -> Iterator[str]:
    """Characters that only compatibility sets apart: one of them at a time, wherever it may stand."""
    if text.isascii():
        return
    table = _compatibility_table()
    longest = max(map(len, table))
    for start in range(len(text)):
        for end in range(start + 1, min(start + longest, len(text)) + 1):
            for character in table.get(text[start:end], ()):
                yield text[:start] + character + text[end:]


@functools.cache
def _compatibility_table() -> dict[str, list[str]]:
    """What letters, radicals, squared words and compatibility ideographs of unspaced scripts are made of."""
    table: dict[str, list[str]] = {}
    for first, last in _COMPATIBILITY_RANGES:
        for code in range(first, last + 1):
            character = chr(code)
            if (plain := unicodedata.normalize("NFKC", character)) != character:
                table.setdefault(plain, []).append(character)
    return table


def _fold_character(code: int) -> str:
    if code in _DROPPED_MARKS:
        return ""
    character = chr(code)
    if character == "İ":
        return "i"
    folded = next((form for form in (character.casefold(), character.lower()) if len(form) == 1), character)
    base, _, mark = unicodedata.decomposition(folded).partition(" ")
    if mark and base[0] != "<" and int(base, 16) < _ASCII_END and int(mark, 16) in _DROPPED_MARKS:
        return chr(int(base, 16))
    return folded


@functools.cache
def _half_width_table() -> dict[int, int]:
    table = {ord(unicodedata.normalize("NFKC", chr(code))): code for code in range(0xFF66, 0xFF9E)}
    return table | {0x3099: 0xFF9E, 0x309A: 0xFF9F}


def _half_width(text: str) -> str:
    """Half-width Katakana writes its voice marks apart, so the text is decomposed first (Katakana only)."""
    table = _half_width_table()
    if not any(0x30A1 <= ord(character) <= 0x30FC for character in text):  # noqa: PLR2004 - the Katakana block
        return text
    return "".join(
        unicodedata.normalize("NFD", character).translate(table) if "\u30a1" <= character <= "\u30fc" else character
        for character in text
    )
