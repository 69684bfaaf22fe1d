"""The drawings of the paper's figures, caught before they are written."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

from gradsift.experiments.paper import drawing
from gradsift.experiments.paper.figures import fig7
from gradsift.experiments.store import Store
from gradsift.experiments.work import as_jobs, work
from gradsift.report import export, style
from tests.experiments.tiny import TINY


@pytest.fixture
def caught(monkeypatch: pytest.MonkeyPatch) -> dict[str, Figure]:
    """Figures by the names of their files."""
    found: dict[str, Figure] = {}
    monkeypatch.setattr(export, "save", lambda figure, path: found.update({path.stem: figure}))
    return found


@pytest.mark.slow
def test_k_is_drawn_to_the_last_round_though_costs_are_compared_where_both_have_them(
    caught: dict[str, Figure], tmp_path: Path
) -> None:
    experiments = fig7(replace(TINY, eval_every=1), 0)[::3]  # a large and a small k
    assert work(as_jobs(experiments), tmp_path, quiet=True) == "done"
    store = Store(tmp_path, tmp_path / "results", [])
    drawing.draw("money", experiments, store, tmp_path)
    ends = []
    for number, experiment in enumerate(experiments):
        there = store.get(experiment)
        assert there is not None
        k, loss = (
            next(line for line in caught[name].axes[0].get_lines() if line.get_color() == style.look(number).colour)
            for name in ("money-k", "money-loss-cost")
        )
        assert np.asarray(k.get_ydata()).tolist() == there.k.tolist()
        ends.append(len(np.asarray(loss.get_xdata())))
    assert len(set(ends)) > 1, "one of them has spent as much as the other before its last round"
