"""How long a program is, by one rule for all: lines that hold code other than imports."""

import ast
import io
import tokenize
from pathlib import Path

_NO_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}


def count_lines(path: Path) -> int:
    """Return the number of lines that hold code.

    Blank lines, comments, docstrings and imports do not count. A statement over three lines counts as three.
    """
    source = path.read_text(encoding="utf-8")
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in _NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines - _left_out(ast.parse(source)))


def _left_out(tree: ast.Module) -> set[int]:
    """The lines of imports and of strings that stand alone, such as docstrings."""
    lines: set[int] = set()
    for node in ast.walk(tree):
        is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and type(node.value.value) is str
        if is_text or isinstance(node, ast.Import | ast.ImportFrom):
            assert isinstance(node, ast.stmt)
            lines.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return lines
