"""Print the requirements of this project and of the named extras, one per line, for the Makefile to install."""

import sys
import tomllib
from pathlib import Path

project = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["project"]
for requirement in [
    *project["dependencies"],
    *(r for e in sys.argv[1:] for r in project["optional-dependencies"][e]),
]:
    print(requirement)
