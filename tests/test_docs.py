"""The README and three pages of docs/ do what they say: their examples run, their lists are complete, links lead."""

import functools
import json
import re
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import gradsift
from gradsift.local import AddGradients
from gradsift.sparsify.base import Sparsifier
from gradsift.sparsify.checked import CheckedSparsifier
from gradsift.wire import Limits, decode
from tests.doc_pages import ROOT, blocks, local_links, problem, read, references, run_blocks
from tests.examples import examples
from tests.method.drivers import CLIENTS, DRIVERS, ROUNDS
from tests.registered import REGISTRIES, own_names

RUN = ["README.md", "docs/extending.md", "docs/plan.md", "docs/wire.md"]
PAGES = ["README.md", *sorted(str(page.relative_to(ROOT)) for page in (ROOT / "docs").rglob("*.md"))]
BUILT_IN = {slot: registry.names() for slot, registry in REGISTRIES.items()}
EXAMPLES = {  # of docs/extending.md: name and class
    "sparsifier": ("random-k", "RandomK"),
    "controller": ("decay", "Decay"),
    "cost": ("metered-link", "MeteredLink"),
    "local": ("fedprox", "FedProx"),
    "values": ("powers-of-two", "PowersOfTwo"),
    "server": ("clipped", "Clipped"),
}


def run(page: str) -> dict[str, Any]:
    """Run the page's python blocks, and check what they print."""
    return run_blocks(blocks(read(page)), page)[0]


@functools.cache
def extensions() -> dict[str, Any]:
    """The classes of docs/extending.md."""
    with own_names():
        return run("docs/extending.md")


@pytest.mark.parametrize("page", RUN)
def test_every_example_runs_and_prints_what_is_shown(page: str) -> None:
    assert any(block.language == "python" for block in blocks(read(page)))
    with own_names():
        run(page)
    assert {slot: registry.names() for slot, registry in REGISTRIES.items()} == BUILT_IN


def test_names_in_extending_are_new_and_reachable() -> None:
    with own_names():
        page = run("docs/extending.md")
        assert EXAMPLES.keys() == REGISTRIES.keys()
        for slot, (name, cls) in EXAMPLES.items():
            assert name not in BUILT_IN[slot]
            assert sorted([*BUILT_IN[slot], name]) == REGISTRIES[slot].names()
            assert type(REGISTRIES[slot].make(name)) is page[cls]
            assert page[cls]().name == name
        with pytest.raises(gradsift.GradsiftError, match="'decay' has no option 'ration'; did you mean 'ratio'"):
            gradsift.controller("decay", ration=0.5)


def test_a_class_of_extending_is_about_thirty_lines() -> None:
    defining = [block.text for block in blocks(read("docs/extending.md")) if "@gradsift.register" in block.text]
    assert len(defining) == len(EXAMPLES)
    assert all(len(text.splitlines()) <= 36 for text in defining)


@pytest.mark.parametrize("driver", DRIVERS)
def test_those_of_extending_run_together_by_name(driver: str) -> None:
    with own_names():
        run("docs/extending.md")
        slots: dict[str, Any] = {slot: name for slot, (name, _) in EXAMPLES.items()}
        done = DRIVERS[driver](**slots, lr=0.1)
        assert [record["steps"] for record in done.records] == [5] * ROUNDS
        assert done.records[0]["used_k"] > done.records[-1]["used_k"]
        assert done.records[-1]["clients"] == CLIENTS
        # Without another process, both drivers take the same steps.
        other = DRIVERS["simulator" if driver == "flower" else "flower"](**slots, lr=0.1)
        torch.testing.assert_close(done.weights, other.weights, rtol=0, atol=1e-6)


@pytest.mark.parametrize("page", PAGES)
def test_every_link_and_reference_leads_somewhere(page: str) -> None:
    text = read(page)
    gone = [link for link in local_links(text) if not ((ROOT / page).parent / link.split("#")[0]).exists()]
    assert gone == []
    if page != "docs/paper_map.md":  # it has a test of its own, row by row
        assert [why for reference in references(text) if (why := problem(reference))] == []


@pytest.mark.parametrize("page", ["README.md", "docs/architecture.md"])
@pytest.mark.parametrize("slot", REGISTRIES)
def test_the_names_of_a_slot_are_listed(slot: str, page: str) -> None:
    row = re.search(rf"^\| `{slot}` \|(?:.+\|)?([^|]+)\|$", read(page), re.MULTILINE)
    assert row
    assert sorted(set(re.findall(r"`([a-z][^`]+)`", row[1]))) == BUILT_IN[slot]


def test_the_readme_names_the_dense_methods() -> None:
    dense = [name for name in gradsift.sparsifiers() if gradsift.sparsifier(name).dense]
    sentence = re.search(r"((?:`[\w-]+`(?: and )?)+) send whole vectors", read("README.md"))
    assert sentence
    assert sorted(re.findall(r"`([\w-]+)`", sentence[1])) == dense


def test_the_commands_of_the_readme_are_targets_of_the_makefile() -> None:
    commands = re.findall(r"^make (\w+)", read("README.md"), re.MULTILINE)
    targets = re.findall(r"^(\w+):", read("Makefile"), re.MULTILINE)
    assert {"run", "test"} <= set(commands) <= set(targets)


def test_the_round_of_the_readme_learns() -> None:
    with own_names():
        names = run("README.md")
    assert names["losses"]["loss_after"] < 0.1 * names["loss"](torch.zeros(100))
    assert names["server"].number == 50


# The examples of docs/extending.md keep the contract that the page states. Values are multiples of 1/64 and so are
# shares: every sum is exact, and equal means equal.


@st.composite
def rounds(draw: st.DrawFn) -> tuple[torch.Tensor, torch.Tensor, gradsift.Round]:
    """residual [N, D], share [N], and a round."""
    clients, dim = draw(st.integers(1, 5)), draw(st.integers(1, 12))
    source = np.random.default_rng(draw(st.integers(0, 2**32)))
    residual = torch.from_numpy(source.integers(-256, 257, (clients, dim)) / 64)
    share = torch.from_numpy(source.multinomial(64, np.full(clients, 1 / clients)) / 64)
    rnd = gradsift.Round(number=draw(st.integers(1, 20)), k=draw(st.integers(1, dim)), seed=draw(st.integers(0, 9)))
    return residual, share, rnd


def example_sparsifier() -> Sparsifier:
    made = extensions()["RandomK"]()
    assert isinstance(made, Sparsifier)
    return CheckedSparsifier(made)


def probe_is_fresh_merge(method: Sparsifier, residual: torch.Tensor, share: torch.Tensor, rnd: gradsift.Round) -> bool:
    upload = method.upload(residual, rnd)
    for probe_k in range(1, rnd.k):
        smaller = rnd._replace(k=probe_k)
        fresh = method.merge(method.upload(residual, smaller), share, smaller)
        probed = method.probe(upload, share, rnd, probe_k)
        if sorted(probed.indices.tolist()) != sorted(fresh.indices.tolist()):
            return False
        if not torch.equal(gradsift.densify(probed), gradsift.densify(fresh)):
            return False
    return True


@given(case=rounds())
@examples(100)
def test_the_sparsifier_probes_as_it_would_merge(case: tuple[torch.Tensor, torch.Tensor, gradsift.Round]) -> None:
    assert probe_is_fresh_merge(example_sparsifier(), *case)


def test_without_its_truncate_it_would_not() -> None:
    careless = type("Careless", (extensions()["RandomK"],), {"truncate": Sparsifier.truncate})
    residual = torch.arange(1.0, 9.0).repeat(2, 1)
    assert not probe_is_fresh_merge(careless(), residual, torch.tensor([0.5, 0.5]), gradsift.Round(1, k=5))


@given(case=rounds(), data=st.data())
@examples(60)
def test_the_sparsifier_loses_nothing(
    case: tuple[torch.Tensor, torch.Tensor, gradsift.Round], data: st.DataObject
) -> None:
    gradients, share, rnd = case
    method = example_sparsifier()
    clients, dim = gradients.shape
    residual, computed, delivered = (torch.zeros_like(gradients) for _ in range(3))
    for number in range(1, 9):
        here = np.flatnonzero(data.draw(st.lists(st.booleans(), min_size=clients, max_size=clients)))
        if len(here) == 0:
            continue
        now = rnd._replace(number=number, k=data.draw(st.integers(1, dim)))
        step = gradients[here] * number
        computed[here] += step
        upload = method.upload(residual[here] + step, now)
        merged = method.merge(upload, torch.full((len(here),), 1 / len(here), dtype=torch.float64), now)
        kept = torch.isin(upload.indices, merged.indices)
        delivered[here] += gradsift.densify(upload._replace(values=upload.values * kept))
        residual[here] = method.settle(residual[here] + step, upload, merged)
        assert torch.equal(computed, delivered + residual)
        assert merged.size == now.k

    upload = method.upload(gradients, rnd)
    assert torch.equal(gradsift.densify(method.merge(upload, share, rnd)), share @ gradsift.densify(upload))


@given(case=rounds(), seed=st.integers(0, 99))
@examples(60)
def test_the_sparsifier_treats_one_client_as_it_treats_all_and_ignores_order(
    case: tuple[torch.Tensor, torch.Tensor, gradsift.Round], seed: int
) -> None:
    residual, share, rnd = case
    method, before = example_sparsifier(), residual.clone()
    upload = method.upload(residual, rnd)
    alone = gradsift.stack([method.upload(row, rnd) for row in residual])
    assert torch.equal(alone.indices, upload.indices)
    assert torch.equal(alone.values, upload.values)
    order = torch.from_numpy(np.random.default_rng(seed).permutation(rnd.k))
    other = upload._replace(indices=upload.indices[:, order], values=upload.values[:, order])
    merged = method.merge(upload, share, rnd)
    assert torch.equal(gradsift.densify(method.merge(other, share, rnd)), gradsift.densify(merged))
    settled = method.settle(residual, upload, merged)
    assert torch.equal(method.settle(residual, other, merged), settled)
    assert torch.equal(method.settle(residual[0], method.upload(residual[0], rnd), merged), settled[0])
    assert torch.equal(residual, before)


@given(
    dim=st.integers(1, 50),
    ratio=st.floats(0.01, 0.99),
    falls=st.lists(st.sampled_from([1.0, 0.0, -1.0, None]), max_size=40),
    late=st.booleans(),
)
@examples(60)
def test_the_controller_keeps_the_contract(dim: int, ratio: float, falls: list[float | None], late: bool) -> None:
    controller = extensions()["Decay"](ratio=ratio)
    state = controller.init(dim=dim, seed=3)
    waiting: list[gradsift.Observation] = []
    for number, fall in enumerate(falls, start=1):
        proposal = controller.propose(state, number)
        assert controller.propose(state, number) == proposal
        assert 1 <= proposal.k <= dim
        seen = gradsift.Observation(proposal=proposal, cost=1.0)
        waiting.append(seen if fall is None else seen._replace(loss_before=2.0, loss_after=2.0 - fall))
        if late and number == 1:
            continue
        saved = json.dumps(state)
        after = controller.update(state, waiting.pop(0))
        assert json.dumps(state) == saved
        assert json.loads(json.dumps(after)) == after
        state = after
    answered = falls[:-1] if late else falls
    expected = float(dim)
    for fall in answered:
        expected = max(1.0, ratio * expected) if fall == 1.0 else expected
    assert state["k"] == expected


def test_the_controller_refuses_bad_options() -> None:
    decay = extensions()["Decay"]
    for options, named in [({"ratio": 1.0}, "1.0"), ({"ratio": float("nan")}, "nan"), ({"k_min": 0.5}, "0.5")]:
        with pytest.raises(gradsift.GradsiftError, match=named):
            decay(**options)
    with pytest.raises(gradsift.GradsiftError, match=r"\[1, 4\], got 5"):
        decay(k_min=5).init(dim=4)


@given(
    up=st.lists(st.integers(0, 100), min_size=3, max_size=3),
    down=st.integers(0, 100),
    here=st.lists(st.booleans(), min_size=3, max_size=3).filter(any),
    free=st.integers(0, 1000),
)
@examples(60)
def test_the_cost_is_what_it_says(up: list[int], down: int, here: list[bool], free: int) -> None:
    cost = extensions()["MeteredLink"](free=free, price=0.5)
    assert isinstance(cost, gradsift.CostModel)
    traffic = gradsift.Traffic.of(dim=100, up=up, down=down, took_part=here)
    used = [8 * (sent * present + down) for sent, present in zip(up, here, strict=True)]
    assert cost.round_cost(traffic) == sum(0.5 * max(total - free, 0) for total in used)


def test_the_cost_refuses_bad_options() -> None:
    for options in ({"free": -1.0, "price": 1.0}, {"free": 0.0, "price": float("nan")}):
        with pytest.raises(gradsift.GradsiftError, match="must be finite and not negative"):
            extensions()["MeteredLink"](**options)


def gradients_of(target: torch.Tensor, steps: list[int]) -> AddGradients:
    """A driver's part: those of |w - target|^2 / 2, and which steps were asked for."""

    def add_gradients(total: torch.Tensor, point: torch.Tensor, step: int) -> None:
        assert total.untyped_storage().data_ptr() != point.untyped_storage().data_ptr()
        steps.append(step)
        total += point - target

    return add_gradients


@given(case=rounds(), steps=st.integers(1, 4), mu=st.sampled_from([0.0, 0.25, 1.0]), lr=st.sampled_from([0.25, 0.5]))
@examples(60)
def test_the_local_computation_is_what_it_says(
    case: tuple[torch.Tensor, torch.Tensor, gradsift.Round], steps: int, mu: float, lr: float
) -> None:
    before, weights, target = case[0], case[0].sum(0), case[0].flip(1)
    local = extensions()["FedProx"](steps=steps, mu=mu)
    residual, asked = before.clone(), list[int]()
    local.accumulate(residual, weights, lr, gradients_of(target, asked))
    assert asked == list(range(steps)) == list(range(local.computations))

    own = weights.expand_as(target)  # the proximal steps as Li et al. write them
    for _ in range(steps):
        own = own - lr * (own - target + mu * (own - weights))
    torch.testing.assert_close(residual, before + (weights - own) / lr, rtol=1e-12, atol=1e-12)
    if mu == 0:
        plain = before.clone()
        gradsift.LocalSteps(steps).accumulate(plain, weights, lr, gradients_of(target, []))
        assert torch.equal(residual, plain)
    for row in range(len(before)):
        alone = before[row].clone()
        local.accumulate(alone, weights, lr, gradients_of(target[row], []))
        assert torch.equal(alone, residual[row])


def test_the_local_computation_refuses_bad_options() -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"steps": 0}, "steps.*got 0"),
        ({"steps": 1.5}, "got 1.5"),
        ({"mu": -1.0}, "mu.*got -1.0"),
    ]
    for options, named in wrong:
        with pytest.raises(gradsift.GradsiftError, match=named):
            extensions()["FedProx"](**options)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@given(data=st.data())
@examples(60)
def test_the_value_type_is_what_it_says(dtype: torch.dtype, data: st.DataObject) -> None:
    clients, dim = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 30))
    source = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    dense = torch.from_numpy(source.standard_normal((clients, dim)) * 10.0 ** source.integers(-20, 20, (clients, dim)))
    dense[torch.from_numpy(source.random((clients, dim)) < 0.1)] = 0.0
    uploads = gradsift.top_k(dense.to(dtype), tuple(source.integers(1, dim + 1, clients).tolist()))
    values = extensions()["PowersOfTwo"]()
    rounded = values.rounded(uploads)
    assert torch.equal(rounded.indices, uploads.indices)
    assert rounded.lengths == uploads.lengths
    mantissa, _ = torch.frexp(rounded.values)
    assert set(mantissa.abs().reshape(-1).tolist()) <= {0.0, 0.5}
    ratio = (rounded.values.double() / uploads.values.double()).nan_to_num(1.0)
    assert bool(((ratio >= 0.7071) & (ratio <= 1.4143)).all())
    for row, length in enumerate(uploads.lengths):
        used = uploads.indices[row] < dim
        one = gradsift.Sparse(uploads.indices[row][used], uploads.values[row][used], dim)
        arrived = decode(values.encode(one), Limits.of(dim))
        order = one.indices.argsort()
        assert torch.equal(arrived.indices, one.indices[order])
        assert torch.equal(arrived.values, rounded.values[row][used][order])
        assert len(values.encode(one)) == values.encoded_size(rounded)[row] > length // 8
