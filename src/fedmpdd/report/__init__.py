"""One page from runs and audits: curves, tables, reconstructions, and what was run."""

from fedmpdd.report.collect import Collection, collect
from fedmpdd.report.numbers import Goals, tables
from fedmpdd.report.page import write_report

__all__ = ["Collection", "Goals", "collect", "tables", "write_report"]
