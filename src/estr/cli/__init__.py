"""`estr`: every stage of the reproduction, and the benchmarks by themselves, as commands."""

from estr.cli import benchmarks, cluster, commands, diagnose, engine, llm, planning, tracking
from estr.cli.group import main

__all__ = ["benchmarks", "cluster", "commands", "diagnose", "engine", "llm", "main", "planning", "tracking"]
