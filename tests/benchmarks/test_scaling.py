"""The scaling benchmark measures every point of every axis, and its figure and table come from what it wrote."""

from __future__ import annotations

import csv

import pytest
import scaling


def test_writes_a_row_per_point_and_method(monkeypatch, tmp_path, capsys):
    axes = {
        "batch": scaling.Axis(scaling.Point(batch=0, observation=4), (8, 16), "batch", True),
        "window": scaling.Axis(scaling.Point(batch=8, repetition=0.9, observation=4), (1, 3), "window", False),
        "repetition": scaling.Axis(scaling.Point(batch=8, observation=4), (0.0, 0.9), "repetition", False),
        "observation": scaling.Axis(scaling.Point(batch=8), (2, 5), "observation", True),
    }
    monkeypatch.setattr(scaling, "AXES", axes)
    monkeypatch.setattr(scaling, "FILL", 50)
    monkeypatch.setattr(scaling, "CSV", tmp_path / "new/scaling.csv")
    monkeypatch.setattr(scaling, "FIGURE", tmp_path / "figures/scaling.png")
    scaling.main(["--rounds", "2"])

    with scaling.CSV.open() as file:
        rows = list(csv.DictReader(file))
    measured = [(row["axis"], float(row[row["axis"]]), row["method"]) for row in rows]
    assert measured == [
        (axis, value, method)
        for axis, settings in axes.items()
        for value in settings.values
        for method in ("TAAC", "SAC")
    ]
    assert all(0 < float(row["update_ms_q1"]) <= float(row["update_ms"]) <= float(row["update_ms_q3"]) for row in rows)
    assert all(float(row["sample_ms"]) > 0 for row in rows)
    assert scaling.FIGURE.read_bytes().startswith(b"\x89PNG")
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == 2 + 4 * 2
    assert printed[2].startswith("| batch | TAAC | 8 | 16 | ")


def test_refuses_no_rounds(capsys):
    with pytest.raises(SystemExit):
        scaling.main(["--rounds", "0"])
    assert "got 0" in capsys.readouterr().err
