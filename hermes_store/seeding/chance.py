"""Chance that comes out the same everywhere.

Python promises one thing across versions: `random.Random(int).random()` gives the same numbers. Everything else
(`choice`, `shuffle`, `sample`, seeding with text) may change, so all choices here are made of that one call and of
whole-number arithmetic. A named stream per purpose keeps one part of a corpus from shifting when another changes.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


class Chance:
    """A stream of reproducible choices.

    Args:
        seed: The corpus's seed.
        purpose: A name; streams of different names are independent.
    """

    def __init__(self, seed: int, purpose: str) -> None:
        digest = hashlib.sha256(f"{seed}/{purpose}".encode()).digest()
        #: The next number from 0 up to, but not including, 1.
        self.number = random.Random(int.from_bytes(digest[:8], "big")).random  # noqa: S311 - made-up data, no secret

    def below(self, limit: int) -> int:
        """A whole number from 0 up to, but not including, a limit.

        Args:
            limit: The limit, at least 1.
        """
        return int(self.number() * limit)

    def between(self, low: int, high: int) -> int:
        """A whole number from a range, both ends included.

        Args:
            low: The smallest.
            high: The largest.
        """
        return low + int(self.number() * (high - low + 1))

    def pick(self, items: Sequence[T]) -> T:
        """One of several things, each as likely.

        Args:
            items: The things.
        """
        return items[int(self.number() * len(items))]

    def happens(self, percent: float) -> bool:
        """Whether something happens.

        Args:
            percent: How often, in a hundred times.
        """
        return self.number() * 100 < percent

    def split(self, shares: Sequence[tuple[T, int]]) -> T:
        """One of several things, by their shares.

        Args:
            shares: Each thing and its share, whole numbers.
        """
        left = int(self.number() * sum(share for _, share in shares))
        for thing, share in shares:
            left -= share
            if left < 0:
                return thing
        raise AssertionError("shares are positive")  # pragma: no cover
