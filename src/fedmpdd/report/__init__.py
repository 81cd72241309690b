"""One page from run folders and audit folders: curves, tables, reconstructions, and what was run."""

from fedmpdd.report.collect import Collection, collect
from fedmpdd.report.numbers import tables
from fedmpdd.report.page import write_report

__all__ = ["Collection", "collect", "tables", "write_report"]
