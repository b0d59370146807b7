"""Planted terms whose every place is known, so that the recall of a search can be computed exactly.

A needle is made of letters or characters that no other text of the corpus uses: ``qx`` begins no made-up word, and
the last characters of the Han block are kept out of the vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from hermes_store.seeding.chance import Chance

_HAN_FIRST, _HAN_LAST = 0x9F00, 0x9FA5
_LETTERS = "bcdfgklmnprstvz"


@dataclass(frozen=True, slots=True)
class Needle:
    """One planted term.

    Attributes:
        text: The term.
        kind: ``word``, ``han1`` … ``han4`` (characters of a Chinese term), or ``glued`` (a word inside Chinese text).
        message_ids: Every message that holds it, in ascending order.
    """

    text: str
    kind: str
    message_ids: tuple[int, ...]


@dataclass(slots=True)
class Planter:
    """Decides which message gets which needle.

    Args:
        seed: The corpus's seed.
        messages: About how many messages there will be; needles are spread over them.
    """

    seed: int
    messages: int
    _places: dict[int, list[tuple[str, str]]] = field(default_factory=dict, init=False)
    _found: dict[tuple[str, str], list[int]] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        chance = Chance(self.seed, "needles")
        for name, text in _needles(chance).items():
            kind = name.partition("/")[0]
            # From a single place up to one message in a hundred.
            for _ in range(max(1, self.messages // chance.pick((self.messages, 10_000, 1_000, 100)))):
                self._places.setdefault(chance.below(max(1, self.messages)), []).append((text, kind))

    def plant(self, place: int, role: str, content: str) -> tuple[str, list[tuple[str, str]]]:
        """Put the needles of a place into a text.

        Args:
            place: The message's place in the corpus, from 0.
            role: Its role; needles go to people and models only, a place of a tool row passes them on to the next.
            content: Its text.

        Returns:
            The text, and the needles in it.
        """
        waiting = self._places.pop(place, None)
        if waiting is None:
            return content, []
        if role not in {"user", "assistant"} or content.startswith("\0"):
            self._places.setdefault(place + 1, []).extend(waiting)
            return content, []
        for text, kind in waiting:
            content = f"{content} {text}" if kind == "word" else f"{content}，{text}。"
        return content, waiting

    def note(self, message_id: int, needles: list[tuple[str, str]]) -> None:
        """Remember where needles are.

        Args:
            message_id: The message.
            needles: What `plant` put into it.
        """
        for needle in needles:
            ids = self._found.setdefault(needle, [])
            if not ids or ids[-1] != message_id:
                ids.append(message_id)

    def report(self) -> tuple[Needle, ...]:
        """All needles that were planted, in the order of their texts."""
        return tuple(Needle(text, kind, tuple(ids)) for (text, kind), ids in sorted(self._found.items()))


def _needles(chance: Chance) -> Mapping[str, str]:
    """Kind and number to text; every text is distinct, and none is part of another."""
    characters = [chr(code) for code in range(_HAN_FIRST, _HAN_LAST + 1)]
    taken = iter(characters)
    needles: dict[str, str] = {}
    for length in (1, 2, 3, 4):
        for number in range(4):
            needles[f"han{length}/{number}"] = "".join(next(taken) for _ in range(length))
    for number in range(8):
        needles[f"word/{number}"] = (
            "qx" + "".join(chance.pick(_LETTERS) + chance.pick("aeiou") for _ in range(4)) + str(number)
        )
    for number in range(4):
        word = "qx" + "".join(chance.pick(_LETTERS) + "o" for _ in range(3)) + f"g{number}"
        needles[f"glued/{number}"] = next(taken) + next(taken) + word + next(taken)
    return needles
