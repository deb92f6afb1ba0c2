"""The examples of the README and of every page under docs/ run and print what they say."""

from __future__ import annotations

import doctest
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
FLAGS = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS


def python_blocks(page: Path) -> str:
    """Return the interactive Python examples of a page; all else is blank, so that line numbers stay true."""
    lines, is_python = [], False
    for line in page.read_text(encoding="utf-8").splitlines():
        if line.startswith("```"):
            is_python = line.strip() == "```python"
            lines.append("")
        else:
            lines.append(line if is_python else "")
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_examples_run(page, monkeypatch):
    monkeypatch.chdir(ROOT)  # pages name files as seen from the root of the repository
    test = doctest.DocTestParser().get_doctest(python_blocks(page), {}, page.name, str(page), 0)
    report: list[str] = []
    result = doctest.DocTestRunner(optionflags=FLAGS).run(test, out=report.append)
    assert not result.failed, "".join(report)


def test_the_page_of_the_wrappers_has_examples():
    assert python_blocks(ROOT / "docs" / "wrappers.md").count(">>>") > 20
