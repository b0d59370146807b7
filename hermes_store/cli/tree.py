"""Drawing lineage: as a tree for the terminal, as Mermaid for documents, as rows for programs."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from rich.text import Text
from rich.tree import Tree

from hermes_store.records import LineageNode

_STYLES = {"root": "bold", "branch": "cyan", "reset": "magenta", "compression": "", "delegate": "dim", "tool": "dim"}


def as_tree(top: LineageNode, chosen: str) -> Tree:
    """Draw a tree for the terminal.

    Args:
        top: The session at its top.
        chosen: The session that was asked about; it is set apart.
    """
    drawn = Tree(_label(top, chosen))
    waiting = [(drawn, child) for child in reversed(top.children)]
    while waiting:  # no recursion: chains of compressions are long
        place, node = waiting.pop()
        branch = place.add(_label(node, chosen))
        waiting.extend((branch, child) for child in reversed(node.children))
    return drawn


def as_mermaid(top: LineageNode) -> str:
    """Draw a tree as a Mermaid flow chart.

    Args:
        top: The session at its top.
    """
    numbers: dict[str, int] = {}
    lines = ["flowchart TD"]
    for _, node in top.walk():
        number = numbers.setdefault(node.id, len(numbers))
        name = " ".join([node.kind, *([node.title] if node.title else [])])
        tip = "<br>tip" if node.is_tip else ""
        lines.append(f'    n{number}["{_quoted(name)}<br>{_quoted(node.id)}{tip}"]')
    for _, node in top.walk():
        lines.extend(f"    n{numbers[node.id]} -->|{child.kind}| n{numbers[child.id]}" for child in node.children)
    return "\n".join(lines)


def as_rows(top: LineageNode) -> Iterator[dict[str, Any]]:
    """Give a tree as one row for each session, parents first.

    Args:
        top: The session at its top.
    """
    parents: dict[str, str] = {}
    names = [field.name for field in dataclasses.fields(LineageNode) if field.name != "children"]
    for depth, node in top.walk():
        parents.update((child.id, node.id) for child in node.children)
        row = {name: getattr(node, name) for name in names}
        yield {**row, "parent_id": parents.get(node.id), "depth": depth}


def _label(node: LineageNode, chosen: str) -> Text:
    label = Text(f"{node.kind} ", style=_STYLES.get(node.kind, ""))
    label.append(node.id, style="reverse" if node.id == chosen else "")
    if node.title:
        label.append(f"  {node.title}")
    facts = [node.source or "?", _day(node.started), f"{node.message_count} messages"]
    if node.last_activity is not None and node.last_activity != node.started:
        facts.append(f"active {_day(node.last_activity)}")
    facts.append(f"ended: {node.end_reason}" if node.end_reason else "open")
    label.append(f"  ({', '.join(facts)})", style="dim")
    if node.is_tip:
        label.append("  tip", style="green")
    return label


def _day(seconds: float | None) -> str:
    return "?" if seconds is None else datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M")


def _quoted(text: str) -> str:
    return text.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;").replace(">", "&gt;")
