"""The one place that makes pages: single files that need no network."""
