"""The flags of every command. It imports nothing heavy, so that ``--help`` and wrong arguments are answered at once."""

import argparse
import textwrap
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from gradsift.cli.options import Parser, add_options, add_set, add_settings
from gradsift.experiments.paper.figures import FIGURES
from gradsift.experiments.paper.scale import SCALES
from gradsift.experiments.settings import BY_NAME, DEFAULT_CONTROLLER, Option, integer
from gradsift.records.stop import STOPS

COMM_TIMES = "0.1,1,10,100"  # the default of ``gradsift regret --comm-times``
EXAMPLES = {
    "": """
        gradsift plan --weights 11e6 --up 10 --down 50    how many elements to send, and how much faster that is
        gradsift run                                  adaptive k on the embedded digits, in half a minute
        gradsift compare                              the same against fixed k, FedAvg and send-all, with a page
        gradsift run --model mymodel:net --data my.npz    your own model and data
        gradsift list                                 every name that a flag takes
    """,
    "run": """
        gradsift run
        gradsift run --sparsifier fub-top-k --k 50 --rounds 200
        gradsift run --comm-time 100 --set controller.alpha=2
        gradsift run --local local-steps --set local.steps=4 --values int8 --encoded-bytes
        gradsift run --sparsifier mymodule:RandomK
        gradsift run mysettings.toml --seed 3
        gradsift run --model mymodel:net --data my.npz --lr 0.01
        GRADSIFT_DATA=folder gradsift run --data femnist --clients 156 --device cuda
    """,
    "plan": """
        gradsift plan --weights 11e6 --up 10 --down 50
        gradsift plan --model paper-cnn --data digits --compute 0.5 --clients 156 --plot plan.svg
        gradsift plan --model mymodel:net --data my.npz --up 1 --down 5 --rounds 2000 --json plan.json
    """,
    "resume": """
        gradsift resume runs/digits-fab-top-k-planned-seed0
        gradsift resume runs/digits-fab-top-k-planned-seed0 --rounds 1000
        gradsift resume runs/comparison-digits
    """,
    "compare": """
        gradsift compare
        gradsift compare --seeds 5 --comm-time 100 --methods extended-sign,fixed,send-all
        gradsift compare --methods sign,fixed@40,fixed@160,fedavg@160 --jobs 1
        gradsift compare --methods fab-top-k,fub-top-k,periodic-k --k 40
        gradsift compare --local local-steps --set local.steps=4 --beside deployed-run
    """,
    "report": """
        gradsift report runs/comparison-digits
        gradsift report runs/a runs/b --out page --target-accuracy 0.9
    """,
    "paper": """
        gradsift paper fig4
        gradsift paper fig4 fig5 fig6 --seeds 3 --jobs 2
        GRADSIFT_DATA=folder gradsift paper all --scale paper --jobs 4 --minutes 9
        gradsift paper fig4 --report
    """,
    "regret": """
        gradsift regret --rounds 100 --seeds 2
        gradsift regret --data my.npz --model mymodel:net --lr 0.01 --targets 1.5,1,0.7
        GRADSIFT_DATA=folder gradsift regret --like femnist --scale paper --jobs 4 --minutes 9
    """,
    "data": """
        gradsift data show digits
        gradsift data show my.npz --partition dirichlet:0.1 --clients 30
        gradsift data import leaf/data/femnist/data writers.npz --set 'data.shape=[1,28,28]'
        gradsift run --data writers.npz
        gradsift data get cifar10 folder
    """,
}


def parser() -> Parser:
    """Return the parser of the whole command line."""
    layout = argparse.RawDescriptionHelpFormatter
    about = "Federated learning that sends only the gradient elements that matter."
    top = Parser(prog="gradsift", description=about, formatter_class=layout, epilog=_examples(""))
    top.add_argument("--version", action="store_true", help="print the version and exit")
    commands = top.add_subparsers(dest="command", metavar="COMMAND", parser_class=Parser)
    for name, command in COMMANDS.items():
        about = command.about[0].upper() + command.about[1:] + "."
        texts: dict[str, Any] = {"help": command.about, "description": about, "epilog": _examples(name)}
        command.add_flags(commands.add_parser(name, formatter_class=layout, **texts))
    return top


def _examples(name: str) -> str | None:
    text = EXAMPLES.get(name)
    return "examples:\n" + textwrap.indent(textwrap.dedent(text).strip(), "  ") if text else None


def _run(command: Parser) -> None:
    _add_settings(command)
    _add_flags(command, Option("out", Path, None, "folder for the run (default: a new one under runs/)"), TENSORBOARD)


def _plan(command: Parser) -> None:
    add_options(
        command,
        Option("weights", integer, None, "number of weights of the model; or name it with --model", "D"),
        replace(BY_NAME["model"], help="a name or module:function, as in gradsift run (default: as there)"),
        replace(BY_NAME["data"], default=None, help="the data whose sizes the model needs (default: digits)"),
        Option("up", float, 10.0, "uplink of a client in Mbit/s", "MBIT"),
        Option("down", float, 50.0, "downlink of a client in Mbit/s", "MBIT"),
        Option("latency", float, 0.03, "seconds that every message takes besides", "S"),
        Option("compute", float, 0.2, "seconds that a client takes for a gradient", "S"),
        Option("clients", integer, 20, "number of clients in a round", "N"),
        Option("rounds", float, None, "rounds to your target if everything were sent, if you know it", "R0"),
        Option("local_steps", integer, 1, "local steps of a client in a round", "H"),
        BY_NAME["bits"],
        Option("fedavg_steps", integer, 20, "local steps of the FedAvg to compare with", "N"),
        Option("k_min", integer, None, "smallest k to consider (default: sqrt(D)/5)", "K"),
        Option("k_max", integer, None, "largest k to consider (default: D)", "K"),
        Option("plain_bytes", None, False, "count 4 bytes for each index and value, not those of the wire format"),
        Option("plot", Path, None, "write a figure of the time over k: .svg, .png or .pdf", "FILE"),
        Option("json", Path, None, "write all numbers as JSON", "FILE"),
    )
    add_set(command, "PART", "option of the model or the data, such as model.hidden=128")


def _resume(command: Parser) -> None:
    command.add_argument("folder", type=Path, help="the folder of a run or a comparison")
    limits = (BY_NAME[name] for name in STOPS)
    stops = (replace(limit, default=None, help=limit.help + ", instead of the earlier limit") for limit in limits)
    _add_flags(command, *stops, JOBS, TENSORBOARD)


def _compare(command: Parser) -> None:
    _add_settings(command)
    command.add_argument(
        "--methods",
        default=",".join(dict.fromkeys((DEFAULT_CONTROLLER, "extended-sign", "fixed", "fedavg", "send-all"))),
        help="comma-separated: a controller (over the --sparsifier; adaptive is the default controller), fixed (at"
        " --k, or at 5 k of which the best in hindsight is marked), a sparsifier (at --k, or in the middle of the 5),"
        " SPARSIFIER+CONTROLLER, METHOD@K for a fixed k of its own, or METHOD[SETTING=VALUE;...] for its own round,"
        " such as planned[local-steps=8;bits=2,4] (default: %(default)s)",
    )
    beside = Option("beside", Path, None, "also show this run, such as one of a deployment; may be repeated", "RUN")
    add_options(command, beside, action="append", default=[])
    _add_flags(
        command,
        Option("seeds", integer, 3, "run seeds 0 to N-1", "N"),
        Option("out", Path, None, "folder for the comparison (default: a new one under runs/)"),
        JOBS,
        TENSORBOARD,
    )


def _report(command: Parser) -> None:
    command.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="run folders, or folders of run folders")
    add_options(
        command,
        Option("out", Path, None, "folder for the page (default: report in the first folder)"),
        Option("title", str, None, "title of the page"),
        Option("target_loss", float, None, "compare the cost of reaching this loss", "L"),
        Option("target_accuracy", float, None, "compare the cost of reaching this accuracy", "A"),
    )


def _data(command: Parser) -> None:
    actions = command.add_subparsers(dest="action", metavar="ACTION", parser_class=Parser, required=True)
    show = actions.add_parser("show", help="show clients, samples, classes, and how non-i.i.d. they are")
    show.add_argument("source", help="digits, femnist, cifar10, a .npz file, or a LEAF or CIFAR-10 folder")
    imports = actions.add_parser("import", help="turn a LEAF folder or CIFAR-10 batches into one .npz file")
    imports.add_argument("source", type=Path, help="the folder")
    imports.add_argument("target", type=Path, help="the .npz file to write, for gradsift run --data")
    for action in (show, imports):
        action.add_argument("--clients", type=integer, metavar="N", help="number of clients; not for LEAF")
        action.add_argument("--partition", help="natural, iid, one-class or dirichlet:ALPHA; not for LEAF")
        add_set(action, "data", "option of the reader, such as 'data.shape=[1,28,28]' for LEAF")
    get = actions.add_parser("get", help="download femnist or cifar10 with flwr-datasets")
    get.add_argument("name", choices=("femnist", "cifar10"))
    get.add_argument("folder", type=Path, help="where to put it; then set GRADSIFT_DATA to this folder")


def _paper(command: Parser) -> None:
    names = (*FIGURES, "all")
    command.add_argument("figures", nargs="+", choices=names, metavar="FIGURE", help=", ".join(names))
    about = "smoke: the embedded digits, in minutes; paper: FEMNIST and CIFAR-10 from GRADSIFT_DATA, for a GPU"
    add_options(command, Option("scale", str, "smoke", about), choices=tuple(SCALES), metavar=None)
    _add_flags(
        command,
        Option("seeds", integer, 1, "run seeds 0 to N-1", "N"),
        Option("only", str, None, "comma-separated: only runs with one of these words in their name", "WORDS"),
        Option("cost_budget", float, None, "cost budget of each method of fig4, fig5, fig6 and sparsifiers", "C"),
        Option("rounds", integer, None, "rounds of fig7, fig8, energy and money, and after psi in fig1", "N"),
        Option("device", str, "auto", "cpu, cuda, or auto"),
        Option("list", None, False, "list the runs and the rounds that are done"),
        Option("out", Path, None, "folder of the runs (default: runs/paper-SCALE)"),
        *WORK,
    )


def _regret(command: Parser) -> None:
    _add_settings(command)
    like = Option("like", str, None, "use a set-up of the paper's figures, and share their runs")
    add_options(command, like, choices=("femnist", "cifar10"), metavar=None)
    add_options(command, Option("scale", str, None, "scale of --like (default: smoke)"), choices=SCALES, metavar=None)
    _add_flags(
        command,
        Option(
            "controllers", str, f"{DEFAULT_CONTROLLER},extended-sign", "comma-separated: NAME or NAME[OPTION=VALUE;..]"
        ),
        Option("comm_times", str, None, f"communication times, comma-separated (default: {COMM_TIMES})", "TIMES"),
        Option("targets", str, None, "losses, comma-separated (default: three on the way to the lowest)", "LOSSES"),
        Option("points", integer, 12, "number of fixed k in the first sweep", "N"),
        Option("refine", integer, 1, "how often to add fixed k around the best", "N"),
        Option("seeds", integer, 3, "run seeds 0 to N-1", "N"),
        Option("out", Path, None, "folder of the runs (default: runs/regret-DATA, with --like that of the figures)"),
        *WORK,
    )


TENSORBOARD = Option("tensorboard", None, False, "also write logs for TensorBoard into the run folder")
JOBS = Option("jobs", integer, None, "runs at a time (default: one a core for small models on the CPU, else 1)", "N")
WORK = (
    Option("results", Path, None, "folder of the results and figures (default: results in --out)"),
    Option("jobs", integer, 1, "number of runs at a time", "N"),
    Option("minutes", float, None, "stop after this many minutes; the same command continues", "T"),
    Option("report", None, False, "run nothing: make results, figures and tables from the runs so far"),
)


def _add_settings(command: Parser) -> None:
    command.add_argument("file", nargs="?", type=Path, metavar="FILE.toml", help="settings, named like the flags")
    add_settings(command)


def _add_flags(command: Parser, *options: Option) -> None:
    add_options(command, *options)
    command.add_argument("--quiet", "-q", action="store_true", help="print results only")


class Command(NamedTuple):
    """A command: its description, the function that adds its flags, and the function that carries it out."""

    about: str
    add_flags: Callable[[Parser], object]
    function: str  # module:function in gradsift.cli, from the parsed arguments to the exit code


COMMANDS = {
    "plan": Command("predict the best k, and the time it saves, for a model and a link", _plan, "planning:plan"),
    "run": Command("train over simulated clients", _run, "running:run"),
    "resume": Command("continue a run or a comparison that was stopped", _resume, "comparing:resume"),
    "compare": Command("run several methods and seeds on one set-up, and compare them", _compare, "comparing:compare"),
    "report": Command("make a page and figures from runs", _report, "reporting:report"),
    "data": Command("show, import or download data", _data, "data:data"),
    "paper": Command("run the experiments of the paper's figures, and draw them", _paper, "paper:paper"),
    "regret": Command("measure how near controllers come to the best fixed k", _regret, "regret:regret"),
    "list": Command(
        "list every data set, model and part of a method by name", lambda command: command, "listing:names"
    ),
    "completion": Command(
        "print a completion script for a shell",
        lambda command: command.add_argument("shell", choices=("bash", "zsh", "tcsh")),
        "listing:completion",
    ),
}
