"""Alembic's environment; see `hermes_store.migrations.environment`, which does the work.

It never configures logging: the program that runs an upgrade owns its loggers.
"""

from alembic import context

from hermes_store.migrations import environment

environment.run(context)  # type: ignore[arg-type] # the module is a proxy of the environment it names
