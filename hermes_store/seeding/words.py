"""Made-up words of many scripts, tens of thousands of each, as frequent as words are.

No word list is shipped, nothing is taken from anywhere: words are put together from syllables (or, for Chinese, from
characters), so they can be read aloud and mean nothing. How often a word comes follows Zipf's law, so a corpus has
rare, middling and frequent terms, as search benchmarks need. The same seed gives the same words everywhere.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hermes_store.seeding.chance import Chance

#: Distinct words per script.
VOCABULARY = 30_000
#: Places in the table a word is drawn from; the most frequent word has about one in eleven of them.
_TABLE = 1 << 17

_LATIN = (
    [
        "b",
        "c",
        "d",
        "f",
        "g",
        "h",
        "j",
        "k",
        "l",
        "m",
        "n",
        "p",
        "r",
        "s",
        "t",
        "v",
        "w",
        "z",
        "br",
        "cl",
        "cr",
        "dr",
        "fl",
        "gr",
        "pl",
        "pr",
        "sl",
        "st",
        "tr",
    ],
    ["a", "e", "i", "o", "u", "ai", "ea", "io", "ou"],
    ["", "", "", "n", "r", "s", "l", "m", "t", "x"],
)
_CYRILLIC = (
    list("бвгджзклмнпрстфхцчш"),
    list("аеиоуыэюя"),
    ["", "", "", "н", "р", "с", "л", "м", "т", "й"],
)
_GREEK = (list("βγδζθκλμνξπρστφχψ"), list("αεηιουω"), ["", "", "ς", "ν", "ρ"])
_KANA = "カキクケコサシスセソタチツテトナニヌネノハヒフヘホマミムメモヤユヨラリルレロワガギグゲゴザジズゼゾダデドバビブベボパピプペポ"
_HIRAGANA = "あいうえおかきくけこさしすせそたちつてとなにぬねのはひふへほまみむめもやゆよらりるれろわをん"
_THAI_CONSONANTS = "กขคงจชซญดตถทธนบปผพฟภมยรลวศสหอ"
_THAI_VOWELS = ("า", "ิ", "ี", "ุ", "ู", "ะ", "ำ", "อ")
#: The last characters of the block are kept out of the words: planted needles are made of them.
_HAN_FIRST, _HAN_LAST = 0x4E00, 0x9EFF
_HAN_CHARACTERS = 3_000  # as many as everyday texts use
_HANGUL_FIRST = 0xAC00

#: How many words of a text are followed by a blank; unspaced scripts run on.
_SPACED = {"latin", "cyrillic", "greek", "hangul"}

#: Language of a locale to the script its words are made of.
SCRIPTS = {
    "en": "latin", "de": "latin", "fr": "latin", "es": "latin", "it": "latin", "pt": "latin", "nl": "latin",
    "pl": "latin", "sv": "latin", "tr": "latin", "vi": "latin", "id": "latin",
    "ru": "cyrillic", "uk": "cyrillic", "bg": "cyrillic", "el": "greek",
    "zh": "han", "ja": "japanese", "ko": "hangul", "th": "thai",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The words of one script.

    Attributes:
        script: Its name.
        words: All words, the most frequent first.
        table: Words as often as they are drawn.
        joint: What stands between two words of a sentence.
        stop: What ends a sentence.
        comma: What separates its parts.
    """

    script: str
    words: tuple[str, ...]
    table: tuple[str, ...]
    joint: str
    stop: str
    comma: str

    def sentence(self, chance: Chance, words: int) -> str:
        """A sentence.

        Args:
            chance: Where choices come from.
            words: How many words it has.
        """
        table, size, number = self.table, len(self.table), chance.number
        drawn = [table[int(number() * size)] for _ in range(words)]
        if words > 6:
            drawn[words // 2] += self.comma
        text = self.joint.join(drawn) + self.stop
        return text[:1].upper() + text[1:] if self.joint else text


def vocabulary(script: str, seed: int) -> Vocabulary:
    """Make the words of a script.

    Args:
        script: One of the values of `SCRIPTS`.
        seed: The corpus's seed.

    Raises:
        ValueError: There is no such script.
    """
    if script not in _MAKERS:
        raise ValueError(f"script {script!r} is unknown; there are {', '.join(_MAKERS)}")
    chance = Chance(seed, f"words/{script}")
    make = _MAKERS[script](chance)
    found: dict[str, None] = {}
    while len(found) < VOCABULARY:
        found[make(chance)] = None
    words = tuple(found)
    spaced = script in _SPACED
    return Vocabulary(
        script,
        words,
        _zipf_table(words),
        " " if spaced else "",
        "." if spaced else _STOPS[script],
        ", " if not spaced else ",",
    )


def script_of(locale: str) -> str:
    """Name the script of a locale.

    Args:
        locale: Such as ``zh_CN``.

    Raises:
        ValueError: The locale's language is not known here.
    """
    language = locale.replace("-", "_").partition("_")[0].lower()
    if language not in SCRIPTS:
        raise ValueError(f"locale {locale!r} is unknown; languages are {', '.join(sorted(SCRIPTS))}")
    return SCRIPTS[language]


_STOPS = {"han": "。", "japanese": "。", "thai": " "}


def _zipf_table(words: tuple[str, ...]) -> tuple[str, ...]:
    """Each word at least once, the n-th about as often as 1/n; whole numbers only, so it is the same everywhere."""
    weights = [1_000_000_000 // (rank + 3) for rank in range(len(words))]
    total = sum(weights)
    table: list[str] = []
    for word, weight in zip(words, weights, strict=True):
        table += [word] * max(1, weight * _TABLE // total)
    return tuple(table)


def _syllables(parts: tuple[list[str], list[str], list[str]]) -> Callable[[Chance], Callable[[Chance], str]]:
    onsets, vowels, codas = parts

    def make(chance: Chance) -> str:
        return "".join(
            chance.pick(onsets) + chance.pick(vowels) + chance.pick(codas) for _ in range(chance.between(1, 3))
        )

    return lambda _chance: make


def _han(chance: Chance) -> Callable[[Chance], str]:
    characters = [chr(chance.between(_HAN_FIRST, _HAN_LAST)) for _ in range(_HAN_CHARACTERS)]
    lengths = ((1, 10), (2, 60), (3, 20), (4, 10))
    return lambda again: "".join(again.pick(characters) for _ in range(again.split(lengths)))


def _japanese(chance: Chance) -> Callable[[Chance], str]:
    han = _han(chance)

    def make(again: Chance) -> str:
        kind = again.below(3)
        if kind == 0:
            return "".join(again.pick(_KANA) for _ in range(again.between(2, 5)))
        stem = han(again) if kind == 1 else ""
        return stem + "".join(again.pick(_HIRAGANA) for _ in range(again.between(1, 3)))

    return make


def _hangul(chance: Chance) -> Callable[[Chance], str]:
    # Syllables with at most a simple final consonant read best.
    blocks = [
        chr(_HANGUL_FIRST + (initial * 21 + medial) * 28 + final)
        for initial in (0, 2, 3, 5, 6, 7, 9, 11, 12, 14, 15, 16, 17, 18)
        for medial in (0, 1, 4, 5, 8, 13, 18, 20)
        for final in (0, 4, 8, 16, 21)
    ]
    del chance
    return lambda again: "".join(again.pick(blocks) for _ in range(again.between(1, 4)))


def _thai(chance: Chance) -> Callable[[Chance], str]:
    del chance

    def make(again: Chance) -> str:
        return "".join(
            again.pick(_THAI_CONSONANTS)
            + again.pick(_THAI_VOWELS)
            + (again.pick(_THAI_CONSONANTS) if again.happens(40) else "")
            for _ in range(again.between(1, 3))
        )

    return make


_MAKERS: dict[str, Callable[[Chance], Callable[[Chance], str]]] = {
    "latin": _syllables(_LATIN),
    "cyrillic": _syllables(_CYRILLIC),
    "greek": _syllables(_GREEK),
    "han": _han,
    "japanese": _japanese,
    "hangul": _hangul,
    "thai": _thai,
}
