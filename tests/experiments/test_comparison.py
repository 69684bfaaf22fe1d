"""What a comparison compares: the default controller, Algorithm 3, the fixed k that are worth it, and other methods."""

import inspect
from typing import Any

import pytest

import gradsift
from gradsift.cli import parser
from gradsift.errors import UsageError
from gradsift.experiments.comparison import FIXED, expand, fixed_ks, folder_name, resolve, split
from gradsift.experiments.settings import DEFAULT_CONTROLLER, DEFAULTS

SETTINGS: dict[str, Any] = {**DEFAULTS, "set": {}}
KS = [5, 20, 80]


def default_methods() -> list[str]:
    given = parser.parser().parse_args(["compare"])
    return str(given.methods).split(",")


def test_the_default_controller_comes_first_and_none_comes_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    rest = ["fixed", "fedavg", "send-all"]
    monkeypatch.setattr(parser, "DEFAULT_CONTROLLER", "extended-sign")
    assert default_methods() == ["extended-sign", *rest]
    monkeypatch.setattr(parser, "DEFAULT_CONTROLLER", "sign")
    assert default_methods() == ["sign", "extended-sign", *rest]


def test_every_way_has_the_same_default_controller() -> None:
    for function in (gradsift.simulate, gradsift.Method.of):
        assert inspect.signature(function).parameters["controller"].default == DEFAULT_CONTROLLER


@pytest.mark.parametrize("dim", [1, 2, 5, 10, 100, 6090, 444_062])
@pytest.mark.parametrize("comm_time", [0.0, 0.1, 10.0, 100.0, 1e9])
def test_fixed_k_are_different_and_possible(dim: int, comm_time: float) -> None:
    ks = fixed_ks(dim, gradsift.NormalizedTime(comm_time=comm_time), 20)
    assert 1 <= len(ks) <= FIXED
    assert ks == sorted(set(ks))
    assert all(1 <= k <= dim for k in ks)
    if dim > 6000:
        assert len(ks) == FIXED
        assert ks[-1] == round(0.3 * dim)
        assert 0.0005 * dim - 1 <= ks[0] <= 0.03 * dim + 1


def test_they_begin_where_communication_begins_to_cost() -> None:
    for comm_time, part in ((10.0, 0.005), (100.0, 0.0005), (1.0, 0.03)):
        assert fixed_ks(10**6, gradsift.NormalizedTime(comm_time=comm_time), 3)[0] == part * 10**6
    assert fixed_ks(10**6, gradsift.Money(up=1e-9, down=0.0), 3)[0] == 500  # nothing else costs anything


def test_words_become_methods() -> None:
    words = ["extended-sign", "fixed", "fedavg", "send-all", "fub-top-k", "fixed@7", "periodic-k+sign"]
    fixed = ["fixed@5", "fixed@20", "fixed@80"]
    wanted = ["extended-sign", *fixed, "fedavg@20", "send-all", "fub-top-k@20", "fixed@7", "periodic-k+sign"]
    assert expand(words, SETTINGS, KS) == wanted
    assert [resolve(method, SETTINGS)["k"] for method in wanted] == [None, 5, 20, 80, 20, None, 20, 7, None]
    given = {**SETTINGS, "k": 9.0}
    assert expand(words, given, KS) == words  # --k is the only fixed k, but for those with one of their own
    assert [resolve(method, given)["k"] for method in ("fixed", "fedavg", "fixed@7")] == [9, 9, 7]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["adaptive", "planned"], "'adaptive' and 'planned' are the same"),
        (["fixed", "fab-top-k"], "'fixed@20' and 'fab-top-k@20' are the same"),
        (["fixed", "fixed@80"], "'fixed@80' and 'fixed@80' are the same"),
        (["sign@4"], "'sign@4' has no fixed k to choose"),
        (["send-all@4"], "'send-all@4' has no fixed k to choose"),
        (["fixed@x"], "the k of 'fixed@x' is not a number"),
        (["fixd@3"], "unknown method 'fixd'; did you mean 'fixed'?"),
    ],
)
def test_what_is_no_method_is_refused(words: list[str], message: str) -> None:
    with pytest.raises(UsageError) as refused:
        expand(words, SETTINGS, KS)
    assert message in str(refused.value)


def test_a_method_may_have_a_round_of_its_own() -> None:
    words = ["planned", "planned[local-steps=8;bits=2,4]", "fixed[bits=1]@7", "fedavg[local_steps=20]", "send-all"]
    assert split(" ,".join(words)) == words
    assert expand(words, SETTINGS, KS)[:3] == words[:3]
    plain, local, few, fedavg, everything = (resolve(word, SETTINGS) for word in words)
    assert (plain["local_steps"], plain["bits"]) == (None, None)
    assert (local["local_steps"], local["bits"], local["controller"]) == (8, (2, 4), "planned")
    assert (few["bits"], few["k"], few["controller"]) == ((1, 1), 7, "fixed")
    assert (fedavg["local_steps"], fedavg["local"], everything["local_steps"]) == (20, None, None)
    assert [folder_name(word) for word in words[1:3]] == ["planned-local-steps-8-bits-2-4", "fixed-bits-1-@7"]
    assert expand(["fixed[bits=2]"], SETTINGS, KS) == ["fixed[bits=2]@5", "fixed[bits=2]@20", "fixed[bits=2]@80"]


def test_what_sends_everything_keeps_its_own_round() -> None:
    """FedAvg has its period, and neither is rounded, but all are priced in the same bytes."""
    settings = {**SETTINGS, "local_steps": 8, "bits": (2, 4), "server": "momentum"}
    for word in ("fedavg@20", "send-all"):
        chosen = resolve(word, settings)
        assert [chosen[name] for name in ("local_steps", "bits", "server")] == [None, None, None]
        assert chosen["encoded_bytes"]
    assert resolve("fedavg[local-steps=3]", settings)["local_steps"] == 3
    assert resolve("planned", settings)["local_steps"] == 8


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("planned[steps=8]", "must be METHOD"),
        ("planned[local-steps=8", "must be METHOD"),
        ("planned[]", "must be METHOD"),
        ("planned[local-steps=many]", "local_steps of 'planned.local-steps=many.' cannot be 'many'"),
        ("planned[rounds=3]", "must be METHOD"),
    ],
)
def test_a_wrong_round_is_refused_by_name(word: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        resolve(word, SETTINGS)
