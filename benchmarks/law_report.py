"""The tables and figures of docs/theory.md, made from docs/results/data by ``python -m benchmarks.law``."""

import itertools
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import committed
from benchmarks.common import ROOT, markdown
from benchmarks.law import AT, COMM_TIMES, SEEN, Floats, Known, Part, Plans, Rule, Tried, fitted, plans, rounds_by_k
from benchmarks.law_tasks import TASKS
from gradsift.control.law import EXPONENT, guess
from gradsift.control.planned import RULE, measured_c

PAGE, IMAGES = ROOT / "docs/theory.md", ROOT / "docs/images"
SWEPT = {"femnist": "FEMNIST", "cifar10": "CIFAR-10"}  # the sweeps of docs/results/regret.md
DRAWN = ["femnist-groupnorm", "femnist-batch-8", "femnist-unidirectional", "digits-mlp"]
_TABLE = re.compile(r"(<!-- law: ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def tasks(file: Part) -> str:
    """What each task is."""
    rows = []
    for name, task in file["tasks"].items():
        runs = task["runs"]
        k = f"{runs[0]['k']:,} to {runs[-1]['k']:,}"
        rows.append([name, TASKS[name].about, f"{task['clients']}", f"{task['dim']:,}", k, TASKS[name].role])
    return markdown(["Task", "What", "Clients", "D", "k", "Constants"], rows)


def middle(task: Part) -> Part:
    """The run whose k is nearest to 5 sqrt(D)."""
    runs: list[Part] = task["runs"]
    return min(runs, key=lambda run: abs(math.log(run["k"] / 5 / math.sqrt(task["dim"]))))


def measured(task: Part) -> float | None:
    """c by the rule in that run; the mean of the logarithm over ``SEEN``."""
    one, logs = middle(task), []
    for at in (AT.index(number) for number in SEEN):
        if "waiting" not in one or one["waiting"][at] is None:
            return None
        logs.append(math.log(measured_c(task["dim"], one["k"], one["waiting"][at], one["agreement"][at], AT[at])))
    return math.exp(sum(logs) / len(logs))


def fits(file: Part) -> str:
    """c of both laws for each task with at least four k."""
    sources: list[tuple[str, Part, int | None, float | None]] = []
    for name, sweep in file["sweeps"].items():
        sources += [(f"{SWEPT[name]}, loss {loss:g}", sweep, at, None) for at, loss in enumerate(sweep["targets"])]
    sources += [(name, task, None, measured(task)) for name, task in file["tasks"].items()]
    rows = []
    for name, task, at, seen in sources:
        k, rounds = rounds_by_k(task, at)
        if len(k) < 4:
            continue
        cells = [name, f"{len(k)}", f"{rounds[-1] / rounds.min():.2f}"]
        for exponent in (1.0, EXPONENT):
            _, c, rms = fitted(k, rounds, exponent)
            cells += [f"{c:,.0f}", f"{c / task['dim']:.5f}", f"{c / math.sqrt(task['dim']):.2f}", f"{rms:.3f}"]
        rows.append([*cells, "-" if seen is None else f"{seen:,.0f}"])
    law = ["c", "c/D", "c/sqrt(D)", "rms"]
    heads = ["Task", "k", "last over fewest", *(f"P = 1: {law[0]}", *law[1:]), f"P = {EXPONENT}: c", *law[1:]]
    return markdown([*heads, "c by the rule"], rows)


def planned(file: Part) -> str:
    """The cost of the rule's k by task and comm_time, over the best."""
    others, rows = Tried(file).left_out(), []
    for name, task in plans(file).items():
        cost = task.cost(Rule())
        rows.append([name, *(f"{mean:.3f}" for mean in cost.mean(axis=0)), f"{others[name].mean():.3f}"])
    for name, task in plans(file, "checked on").items():
        rows.append([f"{SWEPT[name]} (sweep)", *(f"{mean:.3f}" for mean in task.cost(Rule()).mean(axis=0)), "below"])
    return markdown(["comm_time", *(f"{each:g}" for each in COMM_TIMES), "constants of the others"], rows)


def crossed(file: Part) -> str:
    """The two sweeps with constants that were chosen on some of the tasks."""
    tried, judged = Tried(file), plans(file, "checked on")
    sets: dict[str, Callable[[str], bool]] = {
        "all": lambda _: True,
        "without FEMNIST": lambda name: not name.startswith("femnist"),
        "without CIFAR-10": lambda name: not name.startswith("cifar10"),
        "FEMNIST alone": lambda name: name.startswith("femnist"),
        "CIFAR-10 alone": lambda name: name.startswith("cifar10"),
    }
    chosen = {f"{label} ({sum(map(on, tried.names))})": tried.rules[tried.best(on)] for label, on in sets.items()}
    rows = []
    for label, rule in {"as shipped": Rule(), **chosen}.items():
        costs = [" / ".join(f"{mean:.3f}" for mean in task.cost(rule).mean(axis=0)) for task in judged.values()]
        rows.append([label, f"{rule.waiting:.2g}", f"{rule.disagreement:g}", f"{rule.exponent:g}", *costs])
    clocks = " / ".join(f"{each:g}" for each in COMM_TIMES)
    return markdown(
        ["Chosen on", "waiting", "disagreement", "P", *(f"{SWEPT[name]} at {clocks}" for name in judged)], rows
    )


def unseen(_: Part) -> str:
    """The planned controller on the seeds that no constant was chosen on, by the committed runs."""
    rows = []
    for comm_time in COMM_TIMES:
        cells = [
            " / ".join(f"{committed.planned_over_best(name, comm_time, target):.2f}" for target in targets)
            for name, targets in committed.TARGETS.items()
        ]
        rows.append([f"{comm_time:g}", *cells])
    heads = [f"{SWEPT[name]}: loss {' / '.join(map(str, committed.TARGETS[name]))}" for name in SWEPT]
    return markdown(["comm_time", *heads], rows)


def signs(_: Part) -> str:
    """The share of Algorithm 3's signs that ask for a smaller k, by k over the best fixed k."""
    rows = []
    for name, title in SWEPT.items():
        for comm_time in COMM_TIMES:
            shares = committed.signs(name, comm_time).shares()
            rows.append(
                [title, f"{comm_time:g}", *(f"{share:.2f} of {count:,}" if count else "-" for count, share in shares)]
            )
    return markdown(["Task", "comm_time", "k below k*/2", "k*/2 to k*", "k* to 2 k*", "above 2 k*"], rows)


def _scores(file: Part, rules: list[tuple[list[str], Rule | Known]], heads: list[str]) -> str:
    sets = [plans(file), *({name: task} for name, task in plans(file, "checked on").items())]

    def score(tasks: dict[str, Plans], rule: Rule | Known) -> list[str]:
        cost = np.array([task.cost(rule) for task in tasks.values()])
        return [f"{cost.mean():.3f}", *([f"{cost.max():.2f}"] if len(tasks) > 1 else [])]

    rows = [[*cells, *(number for each in sets for number in score(each, rule))] for cells, rule in rules]
    return markdown([*heads, "mean", "worst", *SWEPT.values()], rows)


def ways(file: Part) -> str:
    """Ways to know c."""
    rules: list[tuple[list[str], Rule | Known]] = [
        (["the rule"], Rule()),
        (["waiting alone"], Rule(disagreement=0)),
        (["the guess alone, sqrt(D)"], Known(guess)),
        (["0.0025 D, a fit to FEMNIST and CIFAR-10"], Known(lambda dim: 0.0025 * dim)),
        (["the same with P = 1"], Known(lambda dim: 0.0025 * dim, 1.0)),
    ]
    others = np.array(list(Tried(file).left_out().values()))
    table = _scores(file, rules, ["c from"])
    return f"{table}\n\nConstants chosen on the ten other tasks: mean {others.mean():.3f}, worst {others.max():.2f}."


def constants(file: Part) -> str:
    """What another value of each constant costs."""
    rules: list[tuple[list[str], Rule | Known]] = [(["as chosen", ""], Rule())]
    tried: dict[str, tuple[float, ...]] = {
        "exponent": (0.5, 0.6, 0.8, 1.0),
        "waiting": (RULE.waiting / 2, RULE.waiting * 2),
        "disagreement": (0.0, RULE.disagreement / 2, RULE.disagreement * 2),
        "growth": (0.0, 1 / 6, 2 / 3),
        "most": (0.75, 3.0),
    }
    for name, values in tried.items():
        rules += [([name, f"{value:.3g}"], Rule()._replace(**{name: value})) for value in values]
    rules.append((["exponent and waiting", f"1 and {RULE.waiting / 2:g}"], Rule(RULE.waiting / 2, exponent=1.0)))
    for factor in (0.1, 0.5, 1.0, 2.0, 10.0):
        rules.append((["guess alone", f"{factor:g} sqrt(D)"], Known(lambda dim, times=factor: times * guess(dim))))  # type: ignore[misc]
    return _scores(file, rules, ["Constant", "value"])


def wrong(_: Part) -> str:
    """The most that a wrong c can cost, over all prices t0 + t1 k."""
    c = np.geomspace(1e-4, 1e4, 801)  # t0 = t1 = 1: only c t1 / t0 matters

    def cost(believed: Floats) -> Floats:
        spare = (1 - EXPONENT) * believed
        k = (np.sqrt(spare**2 + 4 * EXPONENT * believed) - spare) / 2
        return np.asarray((1 + k) * (1 + c / k) ** EXPONENT)

    def most(factor: float) -> str:
        return f"{(cost(factor * c) / cost(c)).max():.3f}"

    rows = []
    for factor in (2, 3, 5, 10):
        exact = f"{math.cosh(math.log(factor) / 4) ** 2:.3f}"
        rows.append([f"{factor}", exact, most(factor), most(1 / factor)])
    return markdown(["c wrong by", "P = 1", f"P = {EXPONENT}, too large", f"P = {EXPONENT}, too small"], rows)


def grid(task: Part) -> str:
    """How many fixed k there are, and the factors between them."""
    k = [one["k"] for one in task["runs"]]
    factors = [after / before for before, after in itertools.pairwise(k)]
    return f"{len(k)}, x {min(factors):.1f} to {max(factors):.1f}"


def judged(file: Part) -> str:
    """The planned controller against the best k of its sweep, on tasks that nothing was chosen on."""
    rows = []
    for name, task in file["tasks"].items():
        for plan in task["planned"]:
            best, over = [], []
            for at in range(1, len(task["targets"])):
                costs = {one["k"]: one["rounds"][at] * (1 + plan["comm_time"] * 2 * one["k"] / task["dim"])
                         for one in task["runs"] if one["rounds"][at] is not None}  # fmt: skip
                k = min(costs, key=lambda k: costs[k]) if costs else 0
                best.append((f"{k:,}" if k else "-") + (" *" if k == task["runs"][0]["k"] else ""))
                cost = plan["cost"][at]
                comparable = plan["seed"] == task["seed"] and cost is not None and k
                over.append(f"{cost / costs[k]:.2f}" if comparable else "-")
            met = " / ".join(f"{target:.2f}" for target in task["targets"][1:])
            ks, c = [plan["k"][AT.index(number)] for number in (20, 200)], plan["c"][AT.index(200)]
            seen = ["-" if k is None else f"{k:,.0f}" for k in (*ks, c)]
            best = best if over != ["-"] * 3 else ["-"]
            head = [name, f"{plan['comm_time']:g}", grid(task), met]
            rows.append([*head, " / ".join(best), " / ".join(over), *seen])
    heads = ["Task", "comm_time", "Fixed k", "Target losses", "Best fixed k", "Cost over it"]
    return markdown([*heads, "k in round 20", "200", "c in round 200"], rows)


TABLES = {
    each.__name__: each for each in (tasks, fits, planned, crossed, unseen, ways, constants, wrong, judged, signs)
}


def filled(page: str, file: Part) -> str:
    """The page with every table made from the file."""
    return _TABLE.sub(lambda found: f"{found[1]}{TABLES[found[2]](file)}\n{found[3]}", page)


def write(file: Part) -> None:
    """Fill the page and draw its figures."""
    PAGE.write_text(filled(PAGE.read_text(), file))
    draw(file, IMAGES)


def draw(file: Part, folder: Path) -> None:
    """Four figures."""
    import matplotlib
    from matplotlib.figure import Figure

    from gradsift.report.style import LIGHT, LIGHT_LINES, MATPLOTLIB

    style: dict[str, Any] = {**MATPLOTLIB, "text.parse_math": True, "svg.fonttype": "none", "svg.hashsalt": "law"}

    def save(figure: Figure, name: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        figure.savefig(folder / f"law-{name}.svg", metadata={"Date": None})

    with matplotlib.rc_context(style):  # type: ignore[arg-type]  # newer stubs list every key
        figure = Figure(figsize=(9, 4.6), layout="constrained")
        shown = [(title, file["sweeps"][name]) for name, title in SWEPT.items()]
        shown += [(name, file["tasks"][name]) for name in DRAWN]
        for axes, (title, task) in zip(figure.subplots(2, 3).flat, shown, strict=True):
            k, rounds = rounds_by_k(task)
            axes.loglog(k, rounds, "o", color=LIGHT["ink"])
            fine = np.geomspace(k[0], k[-1], 80)
            for number, exponent in enumerate((1.0, EXPONENT)):
                r0, c, _ = fitted(k, rounds, exponent)
                label, dashes = f"P = {exponent:g}", ("--", "-")[number]
                axes.loglog(fine, r0 * (1 + c / fine) ** exponent, dashes, color=LIGHT_LINES[number], label=label)
            axes.minorticks_off()
            axes.set(title=title, xlabel="k", ylabel="rounds to the target")
            axes.set_yticks([t for t in (150, 250, 500, 1000, 2000) if 0.9 * rounds.min() < t < 1.1 * rounds.max()])
            axes.yaxis.set_major_formatter("{x:.0f}")
        axes.legend()
        save(figure, "rounds")

        figure = Figure(figsize=(9, 3.4), layout="constrained")
        left, right = figure.subplots(1, 2)
        weighed = {name: task for name, task in file["tasks"].items() if "waiting" in task["runs"][0]}
        for number, (name, task) in enumerate(weighed.items()):
            one = middle(task)
            look = {"color": LIGHT_LINES[number % 7], "marker": "os^"[number // 7], "markersize": 3, "linewidth": 1}
            x, y = zip(
                *[(t, one["k"] * w / task["dim"]) for t, w in zip(AT, one["waiting"], strict=True) if w], strict=True
            )
            left.loglog(x, y, label=name, **look)
            values = [run["agreement"][AT.index(80)] for run in task["runs"]]
            right.plot([run["k"] / math.sqrt(task["dim"]) for run in task["runs"]], values, **look)
        left.loglog((5, 320), [0.8 * (t / 5) ** (1 / 3) for t in (5, 320)], "--", color=LIGHT["ink"], label="cube root")
        left.set(xlabel="round", ylabel="k waiting / D, at k near 5 sqrt(D)")
        right.axhline(1, color=LIGHT["axis"], linewidth=1)
        right.set(xscale="log", ylim=(-0.6, 4), xlabel="k / sqrt(D)", ylabel="agreement, round 80")
        figure.legend(*left.get_legend_handles_labels(), loc="outside right center", fontsize=7)
        save(figure, "signals")

        figure = Figure(figsize=(9, 3.2), layout="constrained")
        all_plans = {**plans(file), **{SWEPT[name]: task for name, task in plans(file, "checked on").items()}}
        for number, (axes, comm_time) in enumerate(zip(figure.subplots(1, 2, sharey=True), (10.0, 100.0), strict=True)):
            at = COMM_TIMES.index(comm_time)
            rules: dict[str, Rule | Known] = {"the rule": Rule(), "the guess alone": Known(guess)}
            for row, (label, rule) in enumerate(rules.items()):
                costs = [task.cost(rule)[:, at].mean() for task in all_plans.values()]
                axes.plot(costs, range(len(costs)), "os"[row], color=LIGHT_LINES[row], label=label)
            axes.set_yticks(range(len(all_plans)), list(all_plans))
            axes.set(title=f"comm_time {comm_time:g}", xlabel="cost over the best k", xlim=(0.99, 1.25))
            if number:
                axes.legend()
        save(figure, "plans")

        figure = Figure(figsize=(9, 3.2), layout="constrained")
        edges = np.geomspace(1 / 16, 64, 11)
        for number, (axes, (name, title)) in enumerate(
            zip(figure.subplots(1, 2, sharey=True), SWEPT.items(), strict=True)
        ):
            for row, comm_time in enumerate(COMM_TIMES):
                found = committed.signs(name, comm_time).shares(edges.tolist())
                shown = [(x, share) for x, (count, share) in zip(edges * 2**0.5, found, strict=False) if count >= 20]
                axes.plot(*zip(*shown, strict=True), "os^D"[row] + "-", color=LIGHT_LINES[row], label=f"{comm_time:g}")
            axes.step((1 / 16, 1, 64), (0, 0, 1), "--", color=LIGHT["ink"], label="right")
            axes.axhline(0.5, color=LIGHT["axis"], linewidth=1)
            axes.set(title=title, xscale="log", xlabel="k over the best fixed k", ylim=(-0.03, 1.03))
            if number:
                axes.legend(title="comm_time", fontsize=7)
            else:
                axes.set_ylabel("signs that ask for a smaller k")
        save(figure, "signs")
