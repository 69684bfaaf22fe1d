"""docs/deviations.md: every entry is complete, every symbol it names exists, every number it quotes is still true."""

import math
import re

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import gradsift
from gradsift.control.exp3 import Exp3
from gradsift.sparsify.fab_top_k import fair_selection
from tests.doc_pages import problem, read, references

pytestmark = pytest.mark.slow  # many runs

TEXT = read("docs/deviations.md")
ENTRIES = {part.splitlines()[0]: part for part in re.split(r"^### ", TEXT, flags=re.MULTILINE)[1:]}
DIM = 444_062  # the paper's CNN on FEMNIST

Floats = NDArray[np.float64]


@pytest.mark.parametrize("title", ENTRIES)
def test_an_entry_has_readings_a_choice_and_a_reason(title: str) -> None:
    parts = re.findall(r"^- \*\*(\w+)\.\*\*\s+\S", ENTRIES[title], re.MULTILINE)
    assert parts == ["Readings", "Here", "Why"]


def test_every_reference_leads_somewhere() -> None:
    found = references(TEXT)
    assert len(found) > 20
    assert [why for reference in found if (why := problem(reference))] == []


# The fill of FAB-top-k: the paper's procedure with sets, under each of the three readings.

READINGS = ("rank", "upload", "aggregate")  # (a), (b), (c) of the page


def selected(residual: Floats, share: Floats, k: int, reading: str) -> tuple[set[int], bool]:
    """J by the paper's procedure, and whether the fill had a choice; residual [N, D], share [N]."""
    clients = range(len(residual))
    order = [np.lexsort((np.arange(len(row)), -np.abs(row)))[:k].tolist() for row in residual]

    def union(kappa: int) -> set[int]:
        return set().union(*(ranked[:kappa] for ranked in order))

    kappa = max(count for count in range(k + 1) if len(union(count)) <= k)
    chosen = union(kappa)
    added, room = union(kappa + 1) - chosen, k - len(chosen)

    def size(j: int) -> float:
        if reading == "rank":
            return max(abs(float(residual[i, j])) for i in clients if order[i][kappa] == j)
        sent = [i for i in clients if j in order[i]]
        if reading == "upload":
            return max(abs(float(residual[i, j])) for i in sent)
        return abs(float(sum(share[i] * residual[i, j] for i in sent)))

    fill = sorted(added, key=lambda j: (-size(j), j))[:room]
    return chosen.union(fill), 0 < room < len(added)


def draw(source: np.random.Generator, unequal: bool) -> tuple[Floats, Floats, int]:
    """A case as the page describes it: residual [N, D], share [N], k."""
    clients, dim = int(source.integers(2, 9)), int(source.integers(10, 41))
    k = int(source.integers(2, dim))
    residual, share = source.standard_normal((clients, dim)), np.full(clients, 1 / clients)
    if unequal:
        residual = residual * np.exp(source.standard_normal((clients, 1)))
        share = source.dirichlet(np.ones(clients))
    return residual, share, k


def rates(cases: int, unequal: bool) -> list[float]:
    """The row of the page's table: the percentage of cases in each column."""
    source = np.random.default_rng(0)
    counts = np.zeros(6)
    for _ in range(cases):
        residual, share, k = draw(source, unequal)
        sets = {reading: selected(residual, share, k, reading) for reading in READINGS}
        ours, choice = sets["rank"]
        nested = [selected(residual, share, k - 1, reading)[0] <= sets[reading][0] for reading in READINGS]
        others = [sets[reading][0] != ours for reading in READINGS[1:]]
        counts += [choice, *others, *(not inside for inside in nested)]

        upload = gradsift.top_k(torch.from_numpy(residual), k)
        assert set(fair_selection(upload, k).tolist()) == ours
    return [100 * float(count) / cases for count in counts]


@pytest.mark.parametrize("kind", ["equal", "unequal"])
def test_the_readings_of_the_fill_differ_as_often_as_stated(kind: str) -> None:
    row = re.search(rf"^\| {kind} \|(.+)\|$", TEXT, re.MULTILINE)
    assert row
    stated = [float(cell.strip().removesuffix(" %")) for cell in row[1].split("|")]
    cases = 2000
    found = rates(cases, kind == "unequal")
    for percent, measured in zip(stated, found, strict=True):
        # Four standard deviations of a count of this many cases; a rate near zero may be seen once or twice.
        spread = 400 * math.sqrt(percent / 100 * (1 - percent / 100) / cases)
        assert abs(percent - measured) <= max(spread, 200 / cases)
    assert found[3] == stated[3] == 0, "reading (a) is nested always"
    assert min(found[1:3]) > 1, "the other readings are other methods"


# Numbers in other entries.


def observed(proposal: gradsift.Proposal, sign: int) -> gradsift.Observation:
    """Equal losses at k and k', so that the costs alone give the sign."""
    return gradsift.Observation(
        proposal=proposal, cost=2.0 + sign, probe_cost=2.0, loss_before=2.0, loss_after=1.0, loss_probe=1.0
    )


def pinned(**options: bool) -> tuple[list[float], float, float]:
    """(Interval after 1,000 signs that say "less", k then, k after one that says "more")."""
    controller = gradsift.controller("extended-sign", **options)
    state = controller.init(DIM)
    for number in range(1, 1001):
        state = controller.update(state, observed(controller.propose(state, number), 1))
        assert state["k"] == state["k_min"], "pinned from the first round on"
        if number == 20:
            interval = [state["low"], state["high"]]
    assert [state["low"], state["high"]] == interval
    after = controller.update(state, observed(controller.propose(state, 1001), -1))
    return interval, state["k"], after["k"]


def test_a_pinned_k_closes_windows_unless_they_are_read_literally() -> None:
    text = " ".join(ENTRIES["The window at a pinned k"].split())
    interval, k, after = pinned()
    assert f"k is at k_min = {k:,.0f} after round 1" in text
    assert f"[{interval[0]:,.0f}, {interval[1]:,.0f}] after round 20" in text
    assert f"round 1,001 moves k to {after:,.0f}." in text
    interval, k, after = pinned(literal_window=True)
    assert interval == [k, DIM]
    assert f"still [{interval[0]:,.0f}, {interval[1]:,.0f}], and the same wrong sign moves k to {after:,.0f}." in text


def test_the_first_steps_of_value_and_sign() -> None:
    text = ENTRIES["Units of value-based descent"]
    clock = gradsift.NormalizedTime(comm_time=10)
    moved = []
    for name in ("value", "sign"):
        controller = gradsift.controller(name, k_min=0.002 * DIM, k_init=DIM)
        state = controller.init(DIM)
        proposal = controller.propose(state, 1)
        assert proposal.probe_k is not None
        # The clock alone: the loss falls as far at k' as at k, and costs are linear in k.
        costs = [
            clock.round_cost(gradsift.Traffic.of(DIM, up=k, down=k, clients=1)) for k in (proposal.k, proposal.probe_k)
        ]
        seen = observed(proposal, 0)._replace(cost=costs[0], probe_cost=costs[1])
        moved.append(state["k"] - controller.update(state, seen)["k"])
    assert f"moves k by {moved[0]:,.0f} in the first round" in " ".join(text.split())
    assert f"the sign moves it by {moved[1]:,.0f}" in " ".join(text.split())


def test_exp3_over_every_k_draws_uniformly_as_long_as_stated() -> None:
    text = " ".join(ENTRIES["EXP3's parameters"].split())
    bandit = Exp3()
    arms = bandit.count(bandit.init(DIM))
    stated = re.search(r"every horizon up to ([\d,]+) rounds", text)
    assert stated
    limit = int(stated[1].replace(",", ""))
    assert f"K = {arms:,} arms" in text
    assert Exp3(horizon=limit).exploration(arms) == 1.0
    assert Exp3(horizon=limit + 1).exploration(arms) < 1.0
