"""The tables of a report, as Markdown and as HTML. Every number of ours leads to the commands that make it."""

from __future__ import annotations

import html
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from taac_wrappers.benchmark import paper
from taac_wrappers.benchmark.comparison import (
    GOALS,
    Comparison,
    frame_of_goal,
    frames_of,
    minutes_at,
    scores_of,
    tasks_of,
)
from taac_wrappers.benchmark.methods import METHODS
from taac_wrappers.benchmark.results import RunResult
from taac_wrappers.training.tasks import SETTINGS, TASKS

NOT_RUN = "not run"
NOT_RECORDED = "not recorded"


@dataclass(frozen=True)
class Cell:
    """One number as it is shown."""

    text: str
    command: str = ""
    """What makes it, a line for each run."""
    anchor: str = ""
    """The heading under which the commands are listed."""

    def markdown(self) -> str:
        return f"[{self.text}](#{self.anchor})" if self.anchor else self.text

    def html(self) -> str:
        text = html.escape(self.text)
        shown = f'<a href="#{self.anchor}">{text}</a>' if self.anchor else text
        hint = f' title="{html.escape(self.command)}"' if self.command else ""
        return f"<td{hint}>{shown}</td>"


@dataclass(frozen=True)
class Table:
    """A heading, what the numbers are, and the numbers."""

    title: str
    about: str
    header: list[str]
    rows: list[list[Cell]]

    def markdown(self) -> str:
        lines = [self.header, ["---"] * len(self.header), *([cell.markdown() for cell in row] for row in self.rows)]
        return f"## {self.title}\n\n{self.about}\n\n" + "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"

    def html(self) -> str:
        header = "".join(f"<th>{html.escape(name)}</th>" for name in self.header)
        rows = "\n".join(f"<tr>{''.join(cell.html() for cell in row)}</tr>" for row in self.rows)
        body = f"<table><thead><tr>{header}</tr></thead>\n<tbody>{rows}</tbody></table>"
        return f'<h2>{html.escape(self.title)}</h2>\n<p>{html.escape(self.about)}</p>\n<div class="wide">{body}</div>\n'


def all_tables(comparison: Comparison) -> Iterator[Table]:
    """In the order of the report."""
    yield category_table(comparison, "n_scores")
    yield category_table(comparison, "n_aucs")
    yield task_table(comparison)
    yield robust_table(comparison)
    yield repetition_table(comparison)
    for env_name in comparison.env_names:
        yield run_table(comparison, env_name)
        yield course_table(comparison, env_name)


def title_of(exp_name: str) -> str:
    """How a method is called where people read it."""
    return METHODS[exp_name].title if exp_name in METHODS else exp_name


def category_table(comparison: Comparison, metric: str) -> Table:
    """The paper's table of results, with its numbers under ours."""
    printed, name = (paper.N_SCORE, "Final n-score") if metric == "n_scores" else (paper.N_AUC, "n-AUC")
    rows = []
    for category in paper.ROWS:
        ours = [_category_cell(comparison, metric, exp_name, category) for exp_name in METHODS]
        theirs = [_printed_cell(printed.get(exp_name, {}).get(category)) for exp_name in METHODS]
        rows += [[Cell(category), Cell("ours"), *ours], [Cell(category), Cell("paper"), *theirs]]
    about = (
        "Mean over the tasks of a category; in brackets the mean over tasks of the standard deviation over seeds. "
        "Ours exist where a method was run on all tasks of the category for as many frames as in the paper. "
        f"The paper's: {paper.SOURCE}."
    )
    if metric == "n_aucs":
        about += " n-AUC is the mean of all evaluations; ours begin when learning does, and curves are not smoothed."
    return Table(f"{name} by category", about, ["category", "", *map(title_of, METHODS)], rows)


def _printed_cell(spread: paper.Printed | None) -> Cell:
    """None is a method that the paper does not know."""
    return Cell("–" if spread is None else f"{spread.mean:.2f} [{spread.std:.2f}]")


def _category_cell(comparison: Comparison, metric: str, exp_name: str, category: str) -> Cell:
    spread = comparison.category(metric, exp_name, category)
    if spread is None:
        run, of = len(comparison.run_tasks(exp_name, category)), len(tasks_of(category))
        return Cell(f"{NOT_RUN} ({run} of {of} tasks)")
    runs = [run for task in tasks_of(category) for run in comparison.of(exp_name, task.env_id)]
    return Cell(f"{spread.mean:.2f} [{spread.std:.2f}]", commands(runs), slug(exp_name))


def task_table(comparison: Comparison) -> Table:
    """n-scores of every task of the paper, and of other environments that were run."""
    paper_ids = [task.env_id for task in TASKS.values()]
    names = [*paper_ids, *(name for name in comparison.env_names if name not in paper_ids)]
    about = (
        "Mean over seeds, standard deviation, runs. Z0 is the score of a uniformly random policy, Z1 that of the best "
        "of the paper's methods that were run here, by the mode of every stage. † fewer frames than in the paper: "
        "does not count for the category."
    )
    rows = [_task_row(comparison, name) for name in names]
    return Table("n-score by task", about, ["task", "Z0", "Z1", *map(title_of, METHODS)], rows)


def _task_row(comparison: Comparison, env_name: str) -> list[Cell]:
    random, best = comparison.random_scores.get(env_name), comparison.best_score(env_name)
    z0 = Cell("not measured" if random is None else f"{random:,.1f}")
    z1 = Cell("–" if best is None else f"{best:,.1f}")
    return [Cell(env_name), z0, z1, *(_task_cell(comparison, exp_name, env_name) for exp_name in METHODS)]


def _task_cell(comparison: Comparison, exp_name: str, env_name: str) -> Cell:
    runs, scores = comparison.of(exp_name, env_name), comparison.n_scores(exp_name, env_name)
    if not runs:
        has_env = env_name != TASKS["Town01"].env_id
        return Cell(NOT_RUN, f"python {' '.join(METHODS[exp_name].command(env_name, seed=0))}" if has_env else "")
    if scores is None:
        return Cell("no Z0 or Z1", commands(runs), _anchor(exp_name, env_name))
    task = next((task for task in TASKS.values() if task.env_id == env_name), None)
    mark = "" if task is None or comparison.has_all_frames(exp_name, task) else " †"
    text = f"{scores.mean():.2f} [{scores.std():.2f}], {len(runs)}{mark}"
    return Cell(text, commands(runs), _anchor(exp_name, env_name))


def robust_table(comparison: Comparison) -> Table:
    """Interquartile means of the categories."""
    about = (
        "Interquartile mean of the n-scores of all runs of a category, and its 95 % interval by a bootstrap that draws "
        "runs anew within each task (2,000 times); last, the number of runs."
    )
    rows = [[Cell(row), *(_robust_cell(comparison, name, row) for name in METHODS)] for row in paper.ROWS]
    return Table("Interquartile mean", about, ["category", *map(title_of, METHODS)], rows)


def _robust_cell(comparison: Comparison, exp_name: str, category: str) -> Cell:
    robust = comparison.robust(exp_name, category)
    if robust is None:
        return _category_cell(comparison, "n_scores", exp_name, category)
    runs = [run for task in tasks_of(category) for run in comparison.of(exp_name, task.env_id)]
    text = f"{robust.iqm:.2f} ({robust.low:.2f} to {robust.high:.2f}), {robust.runs}"
    return Cell(text, commands(runs), slug(exp_name))


def repetition_table(comparison: Comparison) -> Table:
    """Repeated frames of the last evaluation."""
    about = (
        "Per cent of the frames of the last evaluation that repeat the action before, mean over seeds, by the mode. "
        "The paper gives TAAC's only, over 100 episodes. † as above."
    )
    rows = []
    for paper_id, task in TASKS.items():
        ours = [_repetition_cell(comparison, exp_name, paper_id) for exp_name in METHODS]
        rows.append([Cell(task.env_id), Cell(f"{paper.REPETITION_OF_TAAC[paper_id]}%"), *ours])
    return Table("Repetition", about, ["task", "paper's TAAC", *map(title_of, METHODS)], rows)


def _repetition_cell(comparison: Comparison, exp_name: str, paper_id: str) -> Cell:
    task = TASKS[paper_id]
    runs = comparison.of(exp_name, task.env_id)
    if not runs:
        return _task_cell(comparison, exp_name, task.env_id)
    fractions = [value for run in runs if (value := run.last("final/repeat_fraction")) is not None]
    mark = "" if comparison.has_all_frames(exp_name, task) else " †"
    text = f"{np.mean(fractions):.0%}{mark}" if fractions else NOT_RECORDED
    return Cell(text, commands(runs), _anchor(exp_name, task.env_id))


def run_table(comparison: Comparison, env_name: str) -> Table:
    """Every run on an environment."""
    goal = GOALS.get(env_name)
    reached = [] if goal is None else [f"{goal:,.0f} reached at frame", "minutes"]
    about = (
        "The last evaluation, by the mode. New actions per episode are the decisions not to repeat: frames that did "
        "not. APR: frames per new action; AFR: mean change of the action from frame to frame."
    )
    if goal is not None:
        about += (
            " Reached: the second of two evaluations in a row. Minutes are those of the computer as it was, with "
            "whatever else it did."
        )
    header = ["run", "frames", "last score", "frames per episode", "repeats", "new actions per episode", "APR", "AFR"]
    rows = [
        _run_row(run, goal) for exp_name in comparison.methods_on(env_name) for run in comparison.of(exp_name, env_name)
    ]
    return Table(f"Runs on {env_name}", about, [*header, *reached], rows)


def _run_row(run: RunResult, goal: float | None) -> list[Cell]:
    length, fraction = run.last("final/length"), run.last("final/repeat_fraction")
    new_actions = None if length is None or fraction is None else length * (1 - fraction)
    texts = [
        f"{title_of(run.exp_name)}, seed {run.seed}",
        f"{frames_of(run):,}",
        f"{scores_of([run])[0]:,.1f} ± {_shown(run.last('final/score_std'), ',.1f')}",
        _shown(length, ".0f"),
        _shown(fraction, ".0%"),
        _shown(new_actions, ".0f"),
        _shown(run.last("final/apr"), ".1f"),
        _shown(run.last("final/afr"), ".3f"),
    ]
    if goal is not None:
        frame = frame_of_goal(run, goal)
        texts += ["never", "–"] if frame is None else [f"{frame:,}", _shown(minutes_at(run, frame), ".1f")]
    return [Cell(text, commands([run]), _anchor(run.exp_name, run.env_name)) for text in texts]


def _shown(value: float | None, form: str) -> str:
    return NOT_RECORDED if value is None else format(value, form)


def course_table(comparison: Comparison, env_name: str) -> Table:
    """How scores grew: means over the runs of a method, and the range of their last scores."""
    shares = 0.2, 0.5, 0.8
    rows = []
    for exp_name in comparison.methods_on(env_name):
        runs = comparison.of(exp_name, env_name)
        final = scores_of(runs)
        texts = [
            title_of(exp_name),
            str(len(runs)),
            *(f"{np.mean([_score_at(run, share * frames_of(run)) for run in runs]):,.0f}" for share in shares),
            f"{np.mean(final):,.0f}",
            f"{min(final):,.0f} to {max(final):,.0f}",
        ]
        rows.append([Cell(text, commands(runs), _anchor(exp_name, env_name)) for text in texts])
    about = "Means over runs of the evaluation at a share of their frames, of the last score, and its range."
    header = ["method", "runs", *(f"{share:.0%} of frames" for share in shares), "last", "from lowest to highest"]
    return Table(f"Course on {env_name}", about, header, rows)


def _score_at(run: RunResult, frame: float) -> float:
    """The evaluation at a frame, or the line between its neighbours."""
    return float(np.interp(frame, *run.curve("eval/score")))


def commands(runs: list[RunResult]) -> str:
    """What made them, a line each."""
    return "\n".join(run.made_by.get("command") or f"{run.exp_name}: command not recorded" for run in runs)


def command_headings(comparison: Comparison) -> Iterator[tuple[int, str, str]]:
    """Level, heading and the commands under it, for the last part of a report: a method, then its environments."""
    exp_names = {name: None for env_name in comparison.env_names for name in comparison.methods_on(env_name)}
    for exp_name in exp_names:
        yield 3, exp_name, ""
        for env_name in comparison.env_names:
            if runs := comparison.of(exp_name, env_name):
                yield 4, f"{exp_name} on {env_name}", commands(runs)


def _anchor(exp_name: str, env_name: str) -> str:
    return slug(f"{exp_name} on {env_name}")


def slug(heading: str) -> str:
    """The anchor that Markdown viewers make of a heading."""
    return heading.lower().replace(" ", "-").replace(".", "")


def frames_of_paper() -> str:
    """How long each category is trained in the paper."""
    return ", ".join(f"{name} {SETTINGS[name].total_frames:,}" for name in paper.ROWS if name in SETTINGS)


def markdown_report(comparison: Comparison) -> str:
    """All tables, and the commands they link to."""
    parts = ["# Results beside the paper's\n", f"Frames of the paper: {frames_of_paper()}.\n"]
    parts += [table.markdown() for table in all_tables(comparison)]
    parts.append("## Commands\n")
    for level, heading, text in command_headings(comparison):
        parts.append(f"{'#' * level} {heading}\n" + (f"\n```bash\n{text}\n```\n" if text else ""))
    return "\n".join(parts)
