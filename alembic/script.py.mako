"""${message}."""

from __future__ import annotations

from alembic import op

from hermes_store.migrations import ensure

revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}
branch_labels = ${repr(branch_labels)}
depends_on = ${repr(depends_on)}


def upgrade() -> None:
    """Make it so; do nothing where it already is."""
    ${upgrades if upgrades else "pass"}


def downgrade() -> None:
    """Take back what upgrade() made."""
    ${downgrades if downgrades else "pass"}
