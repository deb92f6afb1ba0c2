"""The scripts share everything but their methods to the letter: a reader who diffs two of them sees the method.

SAC is the backbone. Every other script has all of its blocks, under the same names and in the same order; a block is
equal to SAC's, comments included, unless it is listed here as a method's own. A script may add blocks.
"""

from __future__ import annotations

import ast
import functools
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

AGENTS = Path(__file__).parents[2] / "agents"
BACKBONE = AGENTS / "sac_continuous.py"
OTHERS = sorted(set(AGENTS.glob("*.py")) - {BACKBONE})
every_other_script = pytest.mark.parametrize("script", OTHERS, ids=lambda path: path.stem)

ALWAYS = {"METHOD", "Args.window", "Args.for_task", "check", "draw_windows"}
RECORDED = {"recorded_space", "recorded_action", "critic_loss"}
LOSSES = {"Decisions", "decide", "td_target", "actor_loss", "temperature_loss", "entropy_targets_of", "figures_of"}
OWN = {
    "sac_ntd": ALWAYS | RECORDED | {"decide", "td_target"},
    "sac_nrep": ALWAYS | {"wrap", "make_agent", "learned_reward"},
    "sac_krep": ALWAYS | {"wrap", "learned_reward"} | RECORDED | LOSSES,
    "sac_ez": ALWAYS | {"wrap"},
    "sac_hybrid": ALWAYS | {"wrap", "Args.batch_size.__doc__"} | RECORDED | LOSSES,
    "taac": ALWAYS | {"wrap", "make_agent", "Args.batch_size.__doc__", "critic_loss.__doc__"} | LOSSES,
}
"""What each method does in its own way; an entry covers everything inside it."""


def is_inside(name: str, entry: str) -> bool:
    return name == entry or name.startswith(f"{entry}.")


def is_own(script: Path, name: str) -> bool:
    return any(is_inside(name, entry) for entry in OWN[script.stem.removesuffix("_continuous")])


def source_of(script: Path) -> str:
    """Its text; the class of its agent, whatever that is called, is ``Agent``."""
    source = script.read_text(encoding="utf-8")
    agent = re.search(r"^def make_agent\(.*\) -> (\w+):$", source, re.MULTILINE)
    assert agent is not None
    return re.sub(rf"\b{agent[1]}\b", "Agent", source)


@functools.cache
def blocks_of(source: str) -> dict[str, str]:
    """Every import, constant, function, class, field and method by name, in order, with its text."""
    blocks: dict[str, str] = {}
    for name, text in _blocks(source.splitlines(), ast.parse(source).body[1:], ""):  # without the header
        assert name not in blocks, f"{name} is defined twice"
        blocks[name] = text
    return blocks


def _blocks(lines: list[str], body: list[ast.stmt], prefix: str) -> Iterator[tuple[str, str]]:
    """Docstrings, of functions, classes and constants alike, and the comments above a block are blocks of their own."""
    name, end = "", 0
    for statement in body:
        start = min([statement.lineno, *(each.lineno for each in getattr(statement, "decorator_list", []))])
        text = "\n".join(lines[start - 1 : statement.end_lineno])
        above = "\n".join(lines[end : start - 1]).strip() if end else ""
        end = statement.end_lineno or start
        if _is_text(statement):
            yield f"{name or prefix.removesuffix('.')}.__doc__", text
            continue
        if isinstance(statement, ast.Import | ast.ImportFrom):
            for alias in statement.names:
                yield f"import {alias.asname or alias.name}", f"{getattr(statement, 'module', '')} {alias.name}"
            continue
        name = prefix + _name_of(statement)
        if above:
            yield f"{name} (comment above)", above
        if isinstance(statement, ast.ClassDef):
            yield name, "\n".join(lines[start - 1 : statement.lineno])
            yield from _blocks(lines, statement.body, f"{name}.")
        elif isinstance(statement, ast.FunctionDef) and _is_text(statement.body[0]):
            doc = statement.body[0]
            docstring = lines[doc.lineno - 1 : doc.end_lineno]
            yield name, "\n".join(lines[start - 1 : doc.lineno - 1] + lines[doc.end_lineno : statement.end_lineno])
            yield f"{name}.__doc__", "\n".join(docstring)
        else:
            yield name, text


def _is_text(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _name_of(statement: ast.stmt) -> str:
    if isinstance(statement, ast.FunctionDef | ast.ClassDef):
        return statement.name
    if isinstance(statement, ast.Assign | ast.AnnAssign):
        target = statement.targets[0] if isinstance(statement, ast.Assign) else statement.target
        return ast.unparse(target)
    assert isinstance(statement, ast.If), f"what is this? {ast.unparse(statement)}"
    return ast.unparse(statement.test)


def differences(backbone: str, other: str) -> set[str]:
    """Names of the backbone's blocks that are missing in the other script, or have another text."""
    expected, found = blocks_of(backbone), blocks_of(other)
    return {name for name in expected if found.get(name) != expected[name]}


@every_other_script
def test_blocks_that_are_no_methods_own_are_shared_to_the_letter(script):
    different = differences(source_of(BACKBONE), source_of(script))
    assert {name for name in different if not is_own(script, name)} == set()


@every_other_script
def test_no_block_is_missing_and_the_order_is_the_same(script):
    expected, found = blocks_of(source_of(BACKBONE)), blocks_of(source_of(script))
    outside = [name for name in expected if not name.startswith("Decisions.")]  # what a method decides is its own
    assert [name for name in found if name in outside] == outside


@every_other_script
def test_the_list_of_what_differs_is_no_longer_than_it_must_be(script):
    different = differences(source_of(BACKBONE), source_of(script))
    for entry in OWN[script.stem.removesuffix("_continuous")]:
        assert any(is_inside(name, entry) for name in different), f"{entry} is SAC's"


def test_how_a_method_is_trained_is_no_methods_own():
    """An update and the loop around it: all of the learner, all of main."""
    shared = [
        name for name in blocks_of(source_of(BACKBONE)) if name.split(".")[0].split(" ")[0] in ("Learner", "main")
    ]
    assert {"Learner.__init__", "Learner.sample", "Learner.update", "Learner.critic_gradients", "main"} < set(shared)
    assert not any(is_own(script, name) for script in OTHERS for name in shared)


def test_what_exploration_adds_to_sac_fits_on_a_screen():
    done = subprocess.run(["diff", BACKBONE, AGENTS / "sac_ez_continuous.py"], capture_output=True, text=True)
    assert 10 < len(done.stdout.splitlines()) <= 60


def test_every_kind_of_block_is_found():
    names = blocks_of(source_of(BACKBONE)).keys()
    assert names >= {
        *("import np", "import Agent", "import Counters", "METHOD", "LOG_INTERVAL", "Args", "Args.gamma"),
        *("Args.gamma.__doc__", "Args.for_task", "Args.for_task.__doc__", "critic_loss", "critic_loss.__doc__"),
        *("Learner", "Learner.__doc__", "Learner.__init__", "Learner.sample", "main", "main.__doc__"),
        *("main (comment above)", "Decisions (comment above)", "__name__ == '__main__'"),
    }


def test_one_more_character_in_any_line_is_noticed():
    source = source_of(BACKBONE)
    lines = source.splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith("METHOD"))  # below the imports
    assert len(lines) - first > 200
    for number in range(first, len(lines)):
        if lines[number]:
            changed = [*lines[:number], lines[number] + "#", *lines[number + 1 :]]
            assert len(differences(source, "\n".join(changed))) == 1, lines[number]


def test_another_import_or_another_name_is_noticed():
    source = source_of(BACKBONE)
    assert differences(source, source.replace("import numpy as np", "import numpy")) == {"import np"}
    assert differences(source, source.replace("import copy\n", "from shutil import copy\n")) == {"import copy"}
    assert differences(source, source.replace("def main(", "def train(")) == {
        "main",
        "main.__doc__",
        "main (comment above)",
    }
    names = list(blocks_of(source))
    swapped = blocks_of(
        source.replace("METHOD", "__").replace("LOG_INTERVAL", "METHOD").replace("__ ", "LOG_INTERVAL ")
    )
    assert list(swapped) != names
