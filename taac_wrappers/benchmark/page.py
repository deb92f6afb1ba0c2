"""The report as one HTML page that needs no network: Plotly is inside it."""

from __future__ import annotations

import html

import numpy as np
import plotly.graph_objects as go
from plotly.offline import get_plotlyjs

from taac_wrappers.benchmark import paper
from taac_wrappers.benchmark.comparison import GOALS, Comparison, mean_curve, profile
from taac_wrappers.benchmark.methods import METHODS
from taac_wrappers.benchmark.tables import all_tables, command_headings, frames_of_paper, slug, title_of

# Okabe and Ito's colours, which the colour-blind tell apart; with line styles and marks for those who see none.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#000000", "#E69F00", "#56B4E9", "#7F7F7F")
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
MARKS = ("circle", "square", "diamond", "cross", "x", "triangle-up", "triangle-down", "star", "pentagon", "hexagon")

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 1280px; padding: 0 1rem; color: #111; }
.wide { overflow-x: auto; } table { border-collapse: collapse; font-size: 13px; }
th, td { border: 1px solid #bbb; padding: 3px 7px; text-align: left; white-space: nowrap; }
th { background: #eee; } tr:nth-child(even) { background: #f8f8f8; }
a { color: inherit; text-decoration: underline dotted; } pre { overflow-x: auto; background: #f4f4f4; padding: 6px; }
"""


def html_page(comparison: Comparison) -> str:
    """The whole page."""
    tables = "\n".join(table.html() for table in all_tables(comparison))
    figures = "\n".join(figure.to_html(full_html=False, include_plotlyjs=False) for figure in all_figures(comparison))
    return f"""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>Results beside the paper's</title>
<link rel="icon" href="data:,"><style>{STYLE}</style><script>{get_plotlyjs()}</script></head><body>
<h1>Results beside the paper's</h1>
<p>{len(comparison.runs)} runs on {len(comparison.env_names)} environments. Rest the pointer on a number for the command
that makes it, or follow its link. Frames of the paper: {frames_of_paper()}.</p>
<h2>Curves</h2>
<p>Lines: mean over the runs of a method. Band: from the lowest to the highest of them.</p>
{figures}
{tables}
<h2>Commands</h2>
{_commands(comparison)}
</body></html>
"""


def _commands(comparison: Comparison) -> str:
    parts = []
    for level, heading, text in command_headings(comparison):
        parts.append(f'<h{level} id="{slug(heading)}">{html.escape(heading)}</h{level}>')
        parts.append(f"<pre>{html.escape(text)}</pre>" if text else "")
    return "\n".join(parts)


def all_figures(comparison: Comparison) -> list[go.Figure]:
    """Learning curves of every environment, then the profiles of categories that somebody ran in full."""
    curves = [learning_curves(comparison, env_name) for env_name in comparison.env_names]
    complete = [row for row in paper.ROWS if any(comparison.is_complete(name, row) for name in METHODS)]
    return curves + [performance_profiles(comparison, category) for category in complete]


def learning_curves(comparison: Comparison, env_name: str) -> go.Figure:
    """Score over frames, with the goal by which runs are timed."""
    figure = go.Figure()
    for exp_name in comparison.methods_on(env_name):
        runs = comparison.of(exp_name, env_name)
        frames, mean, low, high = mean_curve(runs)
        name, colour = f"{title_of(exp_name)} ({len(runs)})", _line(exp_name)["color"]
        band = {"x": [*frames, *frames[::-1]], "y": [*high, *low[::-1]], "fill": "toself", "fillcolor": colour}
        figure.add_scatter(**band, opacity=0.15, line_width=0, mode="lines", legendgroup=name, showlegend=False)
        figure.data[-1].hoverinfo = "skip"
        figure.add_scatter(
            x=frames,
            y=mean,
            name=name,
            legendgroup=name,
            mode="lines+markers",
            line=_line(exp_name),
            marker={"symbol": _mark(exp_name), "size": 6, "maxdisplayed": 10},
            customdata=np.stack([low, high], axis=-1),
            hovertemplate="frame %{x:,}: %{y:.1f} (%{customdata[0]:.1f} to %{customdata[1]:.1f})",
        )
    if env_name in GOALS:
        figure.add_hline(GOALS[env_name], line={"dash": "dot", "width": 1, "color": "black"})
    return _laid_out(figure, f"Score on {env_name}", "frames", "score (mode)")


def performance_profiles(comparison: Comparison, category: str) -> go.Figure:
    """Share of runs above a score, for every score."""
    figure, thresholds = go.Figure(), np.linspace(0.0, 1.1, 111)
    for exp_name in METHODS:
        scores = comparison.scores_by_task(exp_name, category)
        if scores is not None:
            figure.add_scatter(
                x=thresholds,
                y=profile(scores, thresholds),
                name=f"{title_of(exp_name)} ({sum(map(len, scores))} runs)",
                mode="lines",
                line=_line(exp_name) | {"shape": "hv"},
                hovertemplate="%{y:.0%} of runs above %{x:.2f}",
            )
    return _laid_out(figure, f"Performance profile of {category}", "n-score", "share of runs above it")


def _laid_out(figure: go.Figure, title: str, x: str, y: str) -> go.Figure:
    figure.update_layout(
        title=title, xaxis_title=x, yaxis_title=y, template="plotly_white", height=500, hovermode="x unified"
    )
    return figure


def _number(exp_name: str) -> int:
    """The same look on every figure; what is none of the paper's methods looks after them."""
    known = list(METHODS)
    return known.index(exp_name) if exp_name in known else len(known) + sum(exp_name.encode())


def _line(exp_name: str) -> dict:
    number = _number(exp_name)
    return {"color": COLOURS[number % len(COLOURS)], "dash": DASHES[number % len(DASHES)], "width": 2}


def _mark(exp_name: str) -> str:
    return MARKS[_number(exp_name) % len(MARKS)]
