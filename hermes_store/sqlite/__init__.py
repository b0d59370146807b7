"""SQLite: engines, journal policy, capabilities, and reading files of every released schema."""
