"""examples/report.py: its numbers are those of the files, and what was not run is said not to be."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pytest

from taac_wrappers.benchmark.comparison import Comparison, minutes_at, stratified_interval
from taac_wrappers.benchmark.paper import N_AUC, N_SCORE
from taac_wrappers.benchmark.results import RunResult, write_result
from taac_wrappers.training.arguments import BadInput

ROOT = Path(__file__).parents[2]
CAR, LANDER, PENDULUM = "MountainCarContinuous-v0", "LunarLanderContinuous-v3", "InvertedDoublePendulum-v5"


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(ROOT / "examples")
    import report

    return report


def add(folder: Path, exp_name: str, env_name: str, seed: int, evaluations: list[float], final: float, frames=100_000):
    at = np.linspace(frames / len(evaluations), frames, len(evaluations)).astype(np.int64)
    last = np.array([frames])
    numbers = {"score": final, "score_std": 0.5, "length": 200.0, "repeat_fraction": 0.75, "apr": 4.0, "afr": 0.125}
    metrics = {"eval/score": (at, np.array(evaluations)), "charts/SPS": (at, np.full(len(at), 100.0))}
    metrics |= {f"final/{name}": (last, np.array([value])) for name, value in numbers.items()}
    command = f"python train.py {exp_name} {env_name} {seed}"
    write_result(folder, RunResult(exp_name, env_name, seed, metrics, {"command": command}))


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """TAAC on all of SimpleControl, SAC on one task of it and for too few frames on another."""
    folder = tmp_path / "results"
    add(folder, "taac", CAR, 0, [0.0, 90.0, 95.0, 95.0], 80.0)
    add(folder, "taac", CAR, 1, [0.0, 40.0, 40.0, 40.0], 40.0)
    add(folder, "sac", CAR, 0, [0.0, 100.0, 100.0, 100.0], 100.0)
    add(folder, "sac", LANDER, 0, [0.0, 0.0], 0.0, frames=50_000)
    add(folder, "taac", LANDER, 0, [-100.0, 100.0], 300.0)
    add(folder, "taac", PENDULUM, 0, [50.0, 150.0], 150.0)
    scores = {CAR: 0.0, LANDER: -100.0, PENDULUM: 50.0}
    (folder / "random.json").write_text(json.dumps({"scores": {name: {"score": z0} for name, z0 in scores.items()}}))
    return folder


def rows_of(text: str, title: str) -> dict[str, list[str]]:
    """A Markdown table by the first cell of its rows, ours before the paper's; links are taken off."""
    section = text.split(f"## {title}\n")[1].split("\n## ")[0]
    lines = [re.sub(r"\[(.*?)\]\(#[^)]*\)", r"\1", line) for line in section.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    table: dict[str, list[str]] = {"header": cells[0]}
    for row in cells[2:]:
        table.setdefault(row[0], row)
    return table


def made(example, results: Path, output: Path) -> tuple[str, str]:
    assert example.main(example.Args(results, output)) == 0
    return (output / "tables.md").read_text(), (output / "index.html").read_text()


def test_n_score_by_hand(example, results, tmp_path):
    """CAR: Z0 0, Z1 100 (SAC): TAAC 0.8, 0.4; LANDER: Z0 -100, Z1 300; PENDULUM: Z0 50, Z1 150; TAAC 1 in both."""
    tables, _ = made(example, results, tmp_path / "report")
    row = dict(zip((table := rows_of(tables, "n-score by task"))["header"], table[CAR], strict=True))
    assert (row["Z0"], row["Z1"], row["TAAC"], row["SAC"]) == ("0.0", "100.0", "0.60 [0.20], 2", "1.00 [0.00], 1")
    table = rows_of(tables, "Final n-score by category")
    row = dict(zip(table["header"], table["SimpleControl"], strict=True))
    assert row["TAAC"] == "0.87 [0.07]"  # (0.6 + 1 + 1) / 3, (0.2 + 0 + 0) / 3
    table = rows_of(tables, "n-AUC by category")
    row = dict(zip(table["header"], table["SimpleControl"], strict=True))
    # Mean curves: (0.7 + 0.3) / 2; (0 + 0.5) / 2; (0 + 1) / 2. Deviations: 0.2, 0, 0.
    assert row["TAAC"] == "0.42 [0.07]"


def test_what_was_not_run_is_said(example, results, tmp_path):
    tables, page = made(example, results, tmp_path / "report")
    categories = rows_of(tables, "Final n-score by category")
    row = dict(zip(categories["header"], categories["SimpleControl"], strict=True))
    assert row["SAC"] == "not run (1 of 3 tasks)"  # too few frames do not count
    assert row["SAC-EZ"] == "not run (0 of 3 tasks)"
    assert set(categories["All"][2:]) == {
        "not run (3 of 14 tasks)",
        "not run (1 of 14 tasks)",
        "not run (0 of 14 tasks)",
    }
    tasks = rows_of(tables, "n-score by task")
    row = dict(zip(tasks["header"], tasks[LANDER], strict=True))
    assert (row["SAC"], row["SAC-EZ"]) == ("0.25 [0.00], 1 †", "not run")
    assert tasks["Hopper-v5"][1:] == ["not measured", "–"] + ["not run"] * 10
    command = f"python agents/sac_ez_continuous.py --env-id {LANDER} --seed 0"
    assert f'<td title="{command}">not run</td>' in page


def test_numbers_of_a_run(example, results, tmp_path):
    tables, page = made(example, results, tmp_path / "report")
    table = rows_of(tables, f"Runs on {CAR}")
    # 90 is reached at the second and third of four evaluations, at 100 frames a second: 75,000 / 100 / 60 minutes.
    numbers = ["100,000", "80.0 ± 0.5", "200", "75%", "50", "4.0", "0.125", "75,000", "12.5"]
    assert table["TAAC, seed 0"][1:] == numbers
    assert table["TAAC, seed 1"][-2:] == ["never", "–"]
    command = f'title="python train.py taac {CAR} 0"'
    assert all(f"<td {command}>" in page and f">{html.escape(number)}</a>" in page for number in numbers)
    assert f'id="taac-on-{CAR.lower()}"' in page
    assert f"](#taac-on-{CAR.lower()})" in tables
    assert f"#### taac on {CAR}\n" in tables


def test_committed_results_are_what_the_page_shows(example, tmp_path):
    tables, page = made(example, ROOT / "results", tmp_path / "report")
    comparison = Comparison.read(ROOT / "results")
    for run in comparison.runs:
        text = f"{run.last('final/score'):,.1f} ± {run.last('final/score_std'):,.1f}"
        assert text in tables
        assert f">{text}</a>" in page
        assert html.escape(run.made_by["command"]) in page
    assert len(comparison.runs) >= 47


def test_the_paper_s_numbers_agree_with_themselves():
    """All is the mean over 14 tasks: 3, 4, 2, 4 and 1 of the categories. Printed numbers are rounded."""
    for table in (N_SCORE, N_AUC):
        assert len(table) == 10
        for rows in table.values():
            means = [rows[name].mean for name in rows if name != "All"]
            assert np.average(means, weights=[3, 4, 2, 4, 1]) == pytest.approx(rows["All"].mean, abs=0.0101)


def test_every_run_is_in_the_interval():
    """To leave one out because other tasks have no such seed would hide a failure."""
    low, high = stratified_interval([np.array([1.0, 1.0, 0.0]), np.array([1.0])])
    assert (low, high) == (0.0, 1.0)  # three zeros and a one, of which the middle two are 0: 1 in 27, above 2.5 %


def test_minutes_are_not_invented(results):
    run = Comparison.read(results).of("taac", CAR)[0]
    assert minutes_at(run, 10) is None  # before the first record of speed
    assert minutes_at(run, 60_000) == 10.0


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        (f"{CAR}/taac_s0.csv", "rubbish\n", r"taac_s0\.csv: line 1 must be"),
        (f"{CAR}/taac_s0.json", "[]", r"taac_s0\.json: expected a JSON object"),
        ("random.json", '{"scores": {"a": 1}}', r"random\.json must hold"),
        ("random.json", '{"scores": 3}', r"random\.json must hold"),
    ],
)
def test_malformed_files_end_it_before_anything_is_written(
    file, text, message, example, results, tmp_path, monkeypatch
):
    (results / file).write_text(text)
    with pytest.raises(BadInput, match=message):
        example.main(example.Args(results, tmp_path / "report"))
    assert not (tmp_path / "report").exists()
    monkeypatch.setattr("sys.argv", ["report.py", str(results), "-o", str(tmp_path / "report")])
    with pytest.raises(SystemExit) as ended:
        example.exit_with(lambda: example.main(example.parse(example.Args)))
    assert ended.value.code == 2


def test_an_unfinished_run_ends_it(example, results, tmp_path):
    curve = np.array([100]), np.array([1.0])
    write_result(results, RunResult("taac", CAR, 7, {"eval/score": curve}))
    with pytest.raises(BadInput, match=f"taac_s7.csv of {CAR} must hold eval/score and final/score"):
        example.main(example.Args(results, tmp_path / "report"))


def test_the_page_in_a_browser(example, results, tmp_path, open_page):
    made(example, results, tmp_path / "report")
    page = open_page(tmp_path / "report" / "index.html")
    plots = "[...document.querySelectorAll('.js-plotly-plot')]"
    assert page.evaluate(f"{plots}.length") == 4  # three environments, and the profile of SimpleControl
    named = f"{plots}[0]._fullData.filter(line => line.y && line.hoverinfo !== 'skip')"
    drawn = page.evaluate(f"{named}.map(line => [line.name, [...line.y]])")
    assert ["TAAC (2)", [0.0, 65.0, 67.5, 67.5]] in drawn
    assert ["SAC (1)", [0.0, 100.0, 100.0, 100.0]] in drawn
    cells = page.evaluate("[...document.querySelectorAll('td')].map(cell => cell.innerText)")
    assert {"0.87 [0.07]", "80.0 ± 0.5", "not run (1 of 3 tasks)"} <= set(cells)


def test_the_committed_results_make_the_figures_of_the_docs(example, tmp_path):
    figures = tmp_path / "new" / "figures"
    assert example.main(example.Args(ROOT / "results", tmp_path / "report", figures)) == 0
    for name in ("learning.png", "methods.png", "manipulation.png"):
        picture = plt.imread(figures / name)
        assert picture.shape[:2] == plt.imread(ROOT / "docs" / "figures" / name).shape[:2]
        assert len(np.unique(picture.reshape(-1, picture.shape[2]), axis=0)) > 100  # curves, not empty axes
