"""Run folders: what was trained, how it went, and how to go on."""
