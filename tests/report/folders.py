"""Run folders for the tests of the report, written directly instead of by a run."""

import json
from pathlib import Path
from typing import Any

import numpy as np

Config = dict[str, Any]


def config(seed: int = 0, sparsifier: str = "fab-top-k", controller: Config | None = None, **more: Any) -> Config:
    """A configuration like those that gradsift.simulate writes; ``more`` replaces whole sections."""
    return {
        "model": {
            "class": "torch.nn.modules.container.Sequential",
            "dim": 1000,
            "text": "Sequential(\n  (0): Linear\n)",
        },
        "loss": "torch.nn.functional.cross_entropy",
        "data": {"name": "blobs", "clients": 6, "samples": 600, "test_samples": 100, "checksum": "1f2e3d4c"},
        "sparsifier": {"name": sparsifier},
        "controller": {"name": "fixed", "k": 50.0} if controller is None else controller,
        "cost": {"class": "NormalizedTime", "comm_time": 10.0, "comp_time": 1.0},
        "lr": {"class": "Constant", "lr": 0.1},
        "settings": {"batch_size": 16, "seed": seed, "charge_probe": False, "eval_every": 5},
        "device": "cpu",
        "dtype": "float32",
        "versions": {"gradsift": "0.1.0", "python": "3.11.7", "torch": "2.13.0"},
        "stop": {"rounds": 40, "cost_budget": None, "target_loss": None, "target_accuracy": None},
        "start": {"global_loss": 2.3, "accuracy": 0.1},
        "run": f"{seed:032x}",
        **more,
    }


def records(
    rounds: int = 40,
    *,
    seed: int = 0,
    k: float = 50.0,
    speed: float = 0.05,
    dim: int = 1000,
    clients: int = 6,
    dense: bool = False,
    every: int | None = 5,
    accuracy: bool = True,
    interval: bool = False,
) -> list[Config]:
    """A smooth descent with a little noise from the seed, evaluated in each ``every``-th round and the last."""
    draw = np.random.default_rng(seed)
    lines, spent = [], 0.0
    for number in range(1, rounds + 1):
        now = k if not interval else float(k * (1 + 0.5 * np.cos(number) / np.sqrt(number)) * draw.uniform(0.9, 1.1))
        sent = dim if dense else round(now)
        spent += 1 + 10 * (0.5 if dense else 1) * 2 * sent / dim
        line: Config = {
            "round": number,
            "cost": spent,
            "k": now,
            "up_elements": sent,
            "up_bytes": 8.0 * sent * clients,
            "down_bytes": 8.0 * sent * clients,
            "contribution": draw.poisson(sent / clients * np.linspace(0.5, 1.5, clients)).tolist(),
            "global_loss": None,
            "accuracy": None,
        }
        if interval:
            line |= {"low": k / 4 if number < rounds / 2 else k / 2, "high": 4 * k if number < rounds / 2 else 2 * k}
        if every is not None and (number % every == 0 or number == rounds):
            left = float(np.exp(-speed * number) * draw.uniform(0.95, 1.05))
            line["global_loss"] = 0.2 + 2 * left
            line["accuracy"] = 0.95 - 0.8 * min(1.0, left) if accuracy else None
        lines.append(line)
    return lines


def write(path: Path, about: Config, lines: list[Config]) -> Path:
    """A run folder."""
    path.mkdir(parents=True)
    (path / "config.json").write_text(json.dumps(about))
    (path / "records.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def comparison(place: Path, seeds: int = 2) -> list[Path]:
    """Four methods like those of ``gradsift compare``, the adaptive one with its interval; seeds of unequal length."""
    paths = []
    for seed in range(seeds):
        for name, sparsifier, controller, options in (
            ("adaptive", "fab-top-k", {"name": "extended-sign", "alpha": 1.5}, {"interval": True, "k": 80.0}),
            ("fixed", "fab-top-k", None, {}),
            ("fedavg", "fedavg", None, {"speed": 0.01}),
            ("send-all", "send-all", None, {"dense": True, "speed": 0.06}),
        ):
            lines = records(40 + 5 * seed, seed=seed, **options)  # type: ignore[arg-type]
            if sparsifier == "fedavg":  # whole or empty messages
                for line in lines:
                    sent = 1000 if line["round"] % 10 == 0 else 0
                    line |= {"up_elements": sent, "up_bytes": 4.0 * 6 * sent, "down_bytes": 4.0 * 6 * sent}
            paths.append(write(place / f"{name}-{seed}", config(seed, sparsifier, controller), lines))
    return paths
