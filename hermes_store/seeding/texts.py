"""What people, models and tools write: made up, but shaped like the real thing.

A corpus of millions of messages cannot be written word by word, so each writer first fills pools of sentences and
lines, then puts messages together from slices of them, and adds a few words drawn afresh, so that rare words stay
rare. Addresses use reserved domains, and there are no telephone numbers at all.
"""

from __future__ import annotations

import base64
import json
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from hermes_store.seeding.chance import Chance
from hermes_store.seeding.words import Vocabulary, script_of, vocabulary

#: Tools and how often a turn calls each.
TOOLS = (
    ("terminal", 34), ("read_file", 22), ("write_file", 9), ("search_files", 10), ("web_search", 7),
    ("web_extract", 5), ("browser_snapshot", 4), ("todo", 5), ("delegate_task", 2), ("vision_analyze", 2),
)  # fmt: skip
MODELS = (
    ("anthropic/claude-opus-4.6", 30), ("anthropic/claude-sonnet-4.6", 24), ("openai/gpt-5.5", 16),
    ("zai/glm-5", 12), ("moonshot/kimi-k3", 8), ("google/gemini-3-pro", 6), ("local/qwen3-coder", 4),
)  # fmt: skip
_EMOJI = ("🚀", "✅", "🙂", "⚠️", "🐛", "👍🏽", "🎉", "🔥")
_LEVELS = (("INFO", 70), ("DEBUG", 15), ("WARNING", 10), ("ERROR", 5))
_EXTENSIONS = ("py", "ts", "go", "rs", "md", "yaml", "sql", "sh")
_SENTENCES, _LINES = 6_000, 12_000
#: Sizes of tool results in characters, and how many of a hundred results have about that size.
_RESULT_SIZES = ((200, 40), (900, 32), (3_000, 19), (9_000, 7), (60_000, 2))


@dataclass(frozen=True, slots=True)
class Pools:
    """What messages are put together from."""

    sentences: dict[str, tuple[str, ...]]
    lines: tuple[str, ...]
    data: str


class Writer:
    """Writes the texts of one corpus.

    Args:
        seed: The corpus's seed.
        locales: Its languages; each message is written in one of them, or mixes Latin words into it.
    """

    def __init__(self, seed: int, locales: Sequence[str]) -> None:
        self._chance = Chance(seed, "texts")
        self.locales = tuple(locales)
        scripts = dict.fromkeys([script_of(locale) for locale in locales])
        self._words: dict[str, Vocabulary] = {script: vocabulary(script, seed) for script in scripts}
        self._latin = self._words.get("latin") or vocabulary("latin", seed)
        self._scripts = tuple(script_of(locale) for locale in locales)
        self._pools = self._fill_pools(seed)

    def user_turn(self) -> str:
        """A short message of a person: a question, a path, a mixed sentence, now and then only a word or two."""
        chance = self._chance
        script = chance.pick(self._scripts)
        kind = chance.below(100)
        if kind < 12:
            return self._short(script)
        text = self._slice(script, chance.between(1, 2)) + self._fresh(script, 2)
        if kind < 40:
            text += " " + self._thing()
        if kind >= 94:
            text += " " + chance.pick(_EMOJI)
        return text

    def assistant_turn(self) -> str:
        """A longer answer, some with code."""
        chance = self._chance
        script = chance.pick(self._scripts)
        text = self._slice(script, chance.between(2, 7)) + self._fresh(script, 3)
        if chance.happens(25):
            text += f"\n\n```{chance.pick(_EXTENSIONS)}\n{self._code(chance.between(3, 12))}\n```\n"
        if chance.happens(30):
            text += f"\n- {self._thing()}\n- {self._thing()}"
        return text

    def tool_call(self) -> tuple[str, dict[str, Any]]:
        """A call: the tool's name and its arguments, some of them in an unspaced script."""
        chance = self._chance
        name = chance.split(TOOLS)
        arguments: dict[str, Any]
        if name == "terminal":
            arguments = {
                "command": f"rg -n {chance.pick(self._latin.table)} {self._path()}",
                "timeout": chance.between(5, 120),
            }
        elif name in {"read_file", "write_file", "search_files"}:
            arguments = {"path": self._path(), "limit": chance.between(50, 2000)}
            if name == "write_file":
                arguments = {"path": self._path(), "content": self._code(8)}
        else:
            arguments = {"query": self._short(chance.pick(self._scripts)), "url": self._url()}
        return name, arguments

    def tool_result(self, tool: str) -> str:
        """What a tool answers: a file, a log, JSON, search hits, or encoded data; a few are up to 60,000 characters.

        Args:
            tool: The tool's name.
        """
        chance = self._chance
        size = max(60, int(chance.split(_RESULT_SIZES) * (0.4 + 0.6 * chance.number())))
        if tool == "vision_analyze":
            start = chance.below(len(self._pools.data) - size) if size < len(self._pools.data) else 0
            return json.dumps({"mime": "image/png", "data": self._pools.data[start : start + size]})
        lines = max(2, size // 62)
        body = self._block(lines)
        fresh = " ".join(chance.pick(self._latin.table) for _ in range(3))
        if tool in {"web_search", "web_extract"}:
            return json.dumps(
                {
                    "success": True,
                    "url": self._url(),
                    "text": f"{self._slice(chance.pick(self._scripts), 2)} {fresh}\n{body}",
                }
            )
        return f"{self._path()}: {fresh}\n{body}"

    def title(self) -> str:
        """A title of a few words, at most 60 characters."""
        script = self._chance.pick(self._scripts)
        words = self._words[script]
        drawn = words.joint.join(self._chance.pick(words.table) for _ in range(self._chance.between(2, 5)))
        return drawn[:60].strip().capitalize()

    def system_prompt(self) -> str:
        """A prompt; a corpus has few of them, each used by many sessions."""
        return "You are a helpful agent.\n" + self._slice("latin" if "latin" in self._words else self._scripts[0], 12)

    def model(self) -> str:
        """A model's name."""
        return self._chance.split(MODELS)

    def _short(self, script: str) -> str:
        words = self._words[script]
        return words.joint.join(self._chance.pick(words.table) for _ in range(self._chance.between(1, 2)))

    def _slice(self, script: str, sentences: int) -> str:
        pool = self._pools.sentences[script]
        start = int(self._chance.number() * (len(pool) - sentences))
        return (" " if self._words[script].joint else "").join(pool[start : start + sentences])

    def _fresh(self, script: str, words: int) -> str:
        vocabulary_ = self._words[script]
        text = vocabulary_.joint.join(self._chance.pick(vocabulary_.table) for _ in range(words))
        if self._chance.happens(8):
            text = unicodedata.normalize("NFD", text)  # the other spelling of the same letters
        if self._chance.happens(20) and not vocabulary_.joint:
            text += self._chance.pick(self._latin.table) + self._chance.pick(vocabulary_.table)  # glued, without blanks
        return vocabulary_.joint + text

    def _block(self, lines: int) -> str:
        pool = self._pools.lines
        if lines >= len(pool):
            lines = len(pool) - 1
        start = int(self._chance.number() * (len(pool) - lines))
        return "\n".join(pool[start : start + lines])

    def _code(self, lines: int) -> str:
        words = self._latin.table
        pick = self._chance.pick
        return "\n".join(
            f"    {pick(words)}_{pick(words)} = {pick(words)}({self._chance.below(1000)})" for _ in range(lines)
        )

    def _path(self) -> str:
        pick = self._chance.pick
        return f"src/{pick(self._latin.table)}/{pick(self._latin.table)}.{pick(_EXTENSIONS)}"

    def _url(self) -> str:
        pick = self._chance.pick
        return f"https://{pick(self._latin.table)}.example.com/{pick(self._latin.table)}?q={pick(self._latin.table)}&page={self._chance.below(90)}"

    def _thing(self) -> str:
        makers: tuple[Callable[[], str], ...] = (
            self._path,
            self._url,
            lambda: f"{self._chance.pick(self._latin.table)}@example.org",
            lambda: f"v{self._chance.below(9)}.{self._chance.below(30)}.{self._chance.below(100)}",
            lambda: f"`{self._chance.pick(self._latin.table)}_{self._chance.pick(self._latin.table)}`",
            lambda: f"{self._chance.between(1, 100)}%",
        )
        return self._chance.pick(makers)()

    def _fill_pools(self, seed: int) -> Pools:
        sentences = {
            script: tuple(words.sentence(chance, chance.between(4, 14)) for _ in range(_SENTENCES))
            for script, words in self._words.items()
            for chance in (Chance(seed, f"sentences/{script}"),)
        }
        chance = Chance(seed, "lines")
        lines = tuple(self._line(chance) for _ in range(_LINES))
        data = base64.b64encode(bytes(chance.below(256) for _ in range(60_000))).decode()
        return Pools(sentences, lines, data)

    def _line(self, chance: Chance) -> str:
        words = self._latin.table
        kind = chance.below(4)
        if kind == 0:
            second = chance.below(86_400)
            stamp = (
                f"2026-06-{chance.between(1, 30):02d}T{second // 3600:02d}:{second // 60 % 60:02d}:{second % 60:02d}Z"
            )
            return f"{stamp} {chance.split(_LEVELS)} {chance.pick(words)}: {chance.pick(words)} {chance.pick(words)} id={chance.below(10**9)}"
        if kind == 1:
            return f"    def {chance.pick(words)}_{chance.pick(words)}(self, {chance.pick(words)}: int) -> str:"
        if kind == 2:
            return f'  "{chance.pick(words)}": {{"{chance.pick(words)}": {chance.below(10**6)}, "ok": true}},'
        return f"{chance.below(10**7):>9}  {chance.pick(words)}/{chance.pick(words)}.{chance.pick(_EXTENSIONS)}  {chance.pick(words)}"
