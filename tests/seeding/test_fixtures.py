"""The fixtures that other projects use."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from hermes_store import HermesStore

pytest_plugins: list[str] = []


def test_a_seeded_store_is_open_and_writable(seeded_store: HermesStore) -> None:
    assert seeded_store.sessions.list()
    seeded_store.meta.set("mine", "1")


def test_each_test_has_its_own_copy(seeded_store: HermesStore, seeded_path: Callable[..., Path]) -> None:
    assert seeded_store.meta.get("mine") is None
    assert seeded_path("tiny", "h16").exists()
