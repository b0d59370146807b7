"""A Faker provider, for tests that want one made-up thing at a time.

Faker gives the interface; the words are ours, so what comes out does not change with Faker's version.
"""

from __future__ import annotations

from typing import Any

from hermes_store.errors import MissingDependencyError
from hermes_store.seeding.conversations import Conversations, Row, Schema
from hermes_store.seeding.texts import Writer

try:
    from faker.providers import BaseProvider
except ImportError as error:
    raise MissingDependencyError("the provider needs Faker: pip install 'hermes-store[seed]'") from error


class HermesProvider(BaseProvider):
    """Sessions, messages, tool calls and results, titles, system prompts and model names.

    ``fake = Faker(); fake.add_provider(HermesProvider)``; ``Faker.seed(7)`` before makes it reproducible.

    Args:
        generator: Faker's generator; it gives the seed.
        locales: The languages of the texts.
    """

    def __init__(self, generator: Any, locales: tuple[str, ...] = ("en_US", "zh_CN", "ja_JP", "ko_KR")) -> None:
        super().__init__(generator)
        seed = int(generator.random.random() * 2**32)
        self._writer = Writer(seed, locales)
        self._conversations = iter(Conversations(seed, self._writer, Schema(31)))

    def hermes_session(self) -> Row:
        """A row of ``sessions``."""
        return next(self._conversations)[0].row

    def hermes_conversation(self) -> list[tuple[Row, list[Row]]]:
        """Sessions that belong together, each with its messages."""
        return [(session.row, session.messages) for session in next(self._conversations)]

    def hermes_message(self) -> Row:
        """A row of ``messages``."""
        return next(self._conversations)[0].messages[0]

    def hermes_user_turn(self) -> str:
        """What a person writes."""
        return self._writer.user_turn()

    def hermes_assistant_turn(self) -> str:
        """What a model answers."""
        return self._writer.assistant_turn()

    def hermes_tool_call(self) -> dict[str, Any]:
        """A call of a tool: ``name`` and ``arguments``."""
        name, arguments = self._writer.tool_call()
        return {"name": name, "arguments": arguments}

    def hermes_tool_result(self, tool: str = "terminal") -> str:
        """What a tool answers.

        Args:
            tool: The tool's name.
        """
        return self._writer.tool_result(tool)

    def hermes_title(self) -> str:
        """A session's title."""
        return self._writer.title()

    def hermes_system_prompt(self) -> str:
        """A system prompt."""
        return self._writer.system_prompt()

    def hermes_model(self) -> str:
        """A model's name."""
        return self._writer.model()
