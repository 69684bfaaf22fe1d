"""The flags of every command. Nothing heavy is imported here, so that ``--help`` and mistakes are answered at once."""

import argparse
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from gradsift.cli.options import Parser, add_set, add_settings
from gradsift.experiments.paper.figures import FIGURES
from gradsift.experiments.paper.scale import SCALES
from gradsift.experiments.settings import BY_NAME, whole
from gradsift.records.stop import STOPS

COMM_TIMES = "0.1,1,10,100"  # of a sweep
EXAMPLES = {
    "": """
        gradsift run                                  adaptive k on the embedded digits, in half a minute
        gradsift compare                              the same against fixed k, FedAvg and send-all, with a page
        gradsift run --model mymodel:net --data my.npz    one's own model and data
        gradsift list                                 every method by name
    """,
    "run": """
        gradsift run
        gradsift run --sparsifier fub-top-k --k 50 --rounds 200
        gradsift run --comm-time 100 --set controller.alpha=2
        gradsift run mysettings.toml --seed 3
        gradsift run --model mymodel:net --data my.npz --lr 0.01
        GRADSIFT_DATA=folder gradsift run --data femnist --clients 156 --device cuda
    """,
    "resume": """
        gradsift resume runs/digits-fab-top-k-extended-sign-seed0
        gradsift resume runs/digits-fab-top-k-extended-sign-seed0 --rounds 1000
        gradsift resume runs/comparison-digits
    """,
    "compare": """
        gradsift compare
        gradsift compare --seeds 5 --comm-time 100 --methods adaptive,fixed,fedavg,send-all
        gradsift compare --methods fab-top-k,fub-top-k,periodic-k --k 40
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
    """The whole command line."""
    layout = argparse.RawDescriptionHelpFormatter
    about = "Federated learning that sends only the gradient elements that matter."
    top = Parser(prog="gradsift", description=about, formatter_class=layout, epilog=_examples(""))
    top.add_argument("--version", action="store_true", help="print the version and exit")
    commands = top.add_subparsers(dest="command", metavar="COMMAND", parser_class=Parser)
    for name, command in COMMANDS.items():
        about = command.about[0].upper() + command.about[1:] + "."
        command.flags(
            commands.add_parser(
                name, help=command.about, description=about, formatter_class=layout, epilog=_examples(name)
            )
        )
    return top


def _examples(name: str) -> str | None:
    text = EXAMPLES.get(name)
    return "examples:\n" + textwrap.indent(textwrap.dedent(text).strip(), "  ") if text else None


def _run(made: Parser) -> None:
    made.add_argument("file", nargs="?", type=Path, metavar="FILE.toml", help="settings, under the names of the flags")
    add_settings(made)
    made.add_argument("--out", type=Path, help="folder for the run (default: a new one under runs/)")
    _shown(made)


def _resume(made: Parser) -> None:
    made.add_argument("folder", type=Path, help="the run's folder")
    for option in (BY_NAME[name] for name in STOPS):
        told = option.help + ", in place of before"
        made.add_argument(option.flag, type=option.kind or str, metavar=option.metavar, help=told)
    _shown(made)


def _compare(made: Parser) -> None:
    made.add_argument("file", nargs="?", type=Path, metavar="FILE.toml", help="settings of the set-up")
    add_settings(made)
    made.add_argument(
        "--methods",
        default="adaptive,fixed,fedavg,send-all",
        help="comma-separated: adaptive (Algorithm 3), fixed (the paper's ratio of k to D), the name of a sparsifier"
        " (at a fixed k) or of a controller (over fab-top-k), or SPARSIFIER+CONTROLLER (default: %(default)s)",
    )
    made.add_argument(
        "--beside",
        type=Path,
        action="append",
        default=[],
        metavar="RUN",
        help="a run that is there already, such as one of a deployment, to show in the same table and page",
    )
    _seeds(made, 3)
    made.add_argument("--out", type=Path, help="folder for the comparison (default: a new one under runs/)")
    _shown(made)


def _report(made: Parser) -> None:
    made.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="run folders, or folders of them")
    made.add_argument("--out", type=Path, help="folder for the page (default: report in the first of them)")
    made.add_argument("--title", help="title of the page")
    made.add_argument("--target-loss", type=float, metavar="L", help="compare the cost of reaching this loss")
    made.add_argument("--target-accuracy", type=float, metavar="A", help="compare the cost of reaching this accuracy")


def _data(made: Parser) -> None:
    actions = made.add_subparsers(dest="action", metavar="ACTION", parser_class=Parser, required=True)
    show = actions.add_parser("show", help="clients, samples, classes, and how non-i.i.d. they are")
    show.add_argument("source", help="digits, femnist, cifar10, a .npz file, or a LEAF or CIFAR-10 folder")
    imports = actions.add_parser("import", help="turn a LEAF folder or CIFAR-10 batches into one .npz")
    imports.add_argument("source", type=Path, help="the folder")
    imports.add_argument("target", type=Path, help="the .npz to write; gradsift run --data takes it by its path")
    for action in (show, imports):
        action.add_argument("--clients", type=whole, metavar="N", help="how many clients; not for LEAF")
        action.add_argument("--partition", help="natural, iid, one-class or dirichlet:ALPHA; not for LEAF")
        add_set(action, "data", "an option of its reader, such as 'data.shape=[1,28,28]' for LEAF")
    get = actions.add_parser("get", help="download femnist or cifar10 through flwr-datasets, where there is a network")
    get.add_argument("name", choices=("femnist", "cifar10"))
    get.add_argument("folder", type=Path, help="where to put it; then set GRADSIFT_DATA to it")


def _paper(made: Parser) -> None:
    made.add_argument(
        "figures", nargs="+", choices=(*FIGURES, "all"), metavar="FIGURE", help=f"{', '.join(FIGURES)}, all"
    )
    made.add_argument(
        "--scale",
        choices=tuple(SCALES),
        default="smoke",
        help="smoke: the embedded digits, in minutes; paper: FEMNIST and CIFAR-10 from GRADSIFT_DATA, for a GPU"
        " (default: %(default)s)",
    )
    _seeds(made, 1)
    made.add_argument("--only", metavar="WORDS", help="comma-separated: only runs with one of these in their name")
    made.add_argument(
        "--cost-budget", type=float, metavar="C", help="what each method may spend: fig4, fig5, fig6, sparsifiers"
    )
    made.add_argument(
        "--rounds", type=whole, metavar="N", help="rounds of fig7, fig8, energy and money, and after psi in fig1"
    )
    made.add_argument("--device", default="auto", help="cpu, cuda, or auto")
    made.add_argument("--list", action="store_true", help="name the runs and how far they are")
    _experiments(made, "runs/paper-SCALE")


def _regret(made: Parser) -> None:
    made.add_argument("file", nargs="?", type=Path, metavar="FILE.toml", help="settings of the set-up")
    add_settings(made)
    made.add_argument(
        "--like", choices=("femnist", "cifar10"), help="the set-up of the paper's figures, whose runs are then shared"
    )
    made.add_argument("--scale", choices=tuple(SCALES), help="of --like (default: smoke)")
    made.add_argument(
        "--controllers", default="extended-sign,sign", help="comma-separated names (default: %(default)s)"
    )
    made.add_argument("--comm-times", metavar="TIMES", help=f"comma-separated (default: {COMM_TIMES})")
    made.add_argument("--targets", metavar="LOSSES", help="comma-separated (default: three on the way down)")
    made.add_argument("--points", type=whole, default=12, metavar="N", help="fixed k to begin with (default: 12)")
    made.add_argument("--refine", type=whole, default=1, metavar="N", help="times to look around the best (default: 1)")
    _seeds(made, 3)
    _experiments(made, "runs/regret-DATA, or that of the figures")


def _experiments(made: Parser, folder: str) -> None:
    made.add_argument("--jobs", type=whole, default=1, metavar="N", help="runs at a time (default: %(default)s)")
    made.add_argument("--minutes", type=float, metavar="T", help="stop after so long; the same command goes on")
    made.add_argument("--out", type=Path, help=f"folder of the runs (default: {folder})")
    made.add_argument("--results", type=Path, help="folder of the results and figures (default: results in --out)")
    made.add_argument(
        "--report", action="store_true", help="make no runs: results, figures and tables from what is there"
    )
    made.add_argument("--quiet", "-q", action="store_true", help="print results only")


def _seeds(made: Parser, default: int) -> None:
    made.add_argument("--seeds", type=whole, default=default, metavar="N", help="seeds 0 to N-1 (default: %(default)s)")


def _shown(made: Parser) -> None:
    made.add_argument("--quiet", "-q", action="store_true", help="print results only")
    made.add_argument("--tensorboard", action="store_true", help="also log for TensorBoard, in the run's folder")


def _completion(made: Parser) -> None:
    made.add_argument("shell", choices=("bash", "zsh", "tcsh"))


class Command(NamedTuple):
    """One command: what its help says, its flags, and the function that carries it out."""

    about: str
    flags: Callable[[Parser], object]
    work: str  # module:function in gradsift.cli, from the parsed arguments to the exit code


COMMANDS = {
    "run": Command("train over simulated clients", _run, "running:run"),
    "resume": Command("continue a run or a comparison that was stopped", _resume, "comparing:resume"),
    "compare": Command("run several methods and seeds on one set-up, and compare them", _compare, "comparing:compare"),
    "report": Command("make a page and figures from runs", _report, "reporting:report"),
    "data": Command("look at data, import it, or get it", _data, "data:data"),
    "paper": Command("run the experiments of the paper's figures, and draw them", _paper, "paper:paper"),
    "regret": Command("measure how near to the best fixed k controllers come", _regret, "regret:regret"),
    "list": Command("name every data set, model, sparsifier, controller and cost", lambda made: made, "listing:names"),
    "completion": Command("print a completion script for a shell", _completion, "listing:completion"),
}
