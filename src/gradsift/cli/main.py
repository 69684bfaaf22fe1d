"""``gradsift``: run, resume, compare, report, paper, data. Exit codes: 0 done, 1 a run failed, 2 wrongly asked."""

import argparse
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path

from gradsift.cli import options, paper, regret
from gradsift.cli.options import Parser, UsageError
from gradsift.errors import GradsiftError, RunError

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
    top = Parser(
        prog="gradsift",
        description="Federated learning that sends only the gradient elements that matter.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=_examples(""),
    )
    top.add_argument("--version", action="store_true", help="print the version and exit")
    commands = top.add_subparsers(dest="command", metavar="COMMAND", parser_class=Parser)

    def command(name: str, text: str) -> Parser:
        made: Parser = commands.add_parser(
            name,
            help=text,
            description=text[0].upper() + text[1:] + ".",
            formatter_class=argparse.RawDescriptionHelpFormatter,
            epilog=_examples(name),
        )
        return made

    run = command("run", "train over simulated clients")
    run.add_argument("file", nargs="?", type=Path, metavar="FILE.toml", help="settings, under the names of the flags")
    options.add_to(run)
    run.add_argument("--out", type=Path, help="folder for the run (default: a new one under runs/)")
    _shown(run)

    resume = command("resume", "continue a run or a comparison that was stopped")
    resume.add_argument("folder", type=Path, help="the run's folder")
    for option in ("rounds", "cost_budget", "target_loss", "target_accuracy"):
        known = options.BY_NAME[option]
        resume.add_argument(
            known.flag, type=known.kind or str, metavar=known.metavar, help=known.help + ", in place of before"
        )
    _shown(resume)

    compare = command("compare", "run several methods and seeds on one set-up, and compare them")
    compare.add_argument("file", nargs="?", type=Path, metavar="FILE.toml", help="settings of the set-up")
    options.add_to(compare)
    compare.add_argument(
        "--methods",
        default="adaptive,fixed,fedavg,send-all",
        help="comma-separated: adaptive (Algorithm 3), fixed (the paper's ratio of k to D), the name of a sparsifier"
        " (at a fixed k) or of a controller (over fab-top-k), or SPARSIFIER+CONTROLLER (default: %(default)s)",
    )
    compare.add_argument("--seeds", type=options.whole, default=3, metavar="N", help="seeds 0 to N-1 (default: 3)")
    compare.add_argument("--out", type=Path, help="folder for the comparison (default: a new one under runs/)")
    _shown(compare)

    report = command("report", "make a page and figures from runs")
    report.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="run folders, or folders of them")
    report.add_argument("--out", type=Path, help="folder for the page (default: report in the first of them)")
    report.add_argument("--title", help="title of the page")
    report.add_argument("--target-loss", type=float, metavar="L", help="compare the cost of reaching this loss")
    report.add_argument("--target-accuracy", type=float, metavar="A", help="compare the cost of reaching this accuracy")

    data = command("data", "look at data, import it, or get it")
    actions = data.add_subparsers(dest="action", metavar="ACTION", parser_class=Parser, required=True)
    show = actions.add_parser("show", help="clients, samples, classes, and how non-i.i.d. they are")
    show.add_argument("source", help="digits, femnist, cifar10, a .npz file, or a LEAF or CIFAR-10 folder")
    imports = actions.add_parser("import", help="turn a LEAF folder or CIFAR-10 batches into one .npz")
    imports.add_argument("source", type=Path, help="the folder")
    imports.add_argument("target", type=Path, help="the .npz to write; gradsift run --data takes it by its path")
    for made in (show, imports):
        made.add_argument("--clients", type=options.whole, metavar="N", help="how many clients; not for LEAF")
        made.add_argument("--partition", help="natural, iid, one-class or dirichlet:ALPHA; not for LEAF")
        made.add_argument(
            "--set",
            dest="set_",
            action="append",
            default=[],
            metavar="data.OPTION=VALUE",
            help="an option of its reader, such as 'data.shape=[1,28,28]' for LEAF",
        )
    get = actions.add_parser("get", help="download femnist or cifar10 through flwr-datasets, where there is a network")
    get.add_argument("name", choices=("femnist", "cifar10"))
    get.add_argument("folder", type=Path, help="where to put it; then set GRADSIFT_DATA to it")

    paper.add_to(command("paper", "run the experiments of the paper's figures, and draw them"))
    regret.add_to(command("regret", "measure how near to the best fixed k controllers come"))
    command("list", "name every data set, model, sparsifier, controller and cost")
    completion = command("completion", "print a completion script for a shell")
    completion.add_argument("shell", choices=("bash", "zsh", "tcsh"))
    return top


def _shown(made: Parser) -> None:
    made.add_argument("--quiet", "-q", action="store_true", help="print results only")
    made.add_argument("--tensorboard", action="store_true", help="also log for TensorBoard, in the run's folder")


def _examples(name: str) -> str | None:
    text = EXAMPLES.get(name)
    return "examples:\n" + textwrap.indent(textwrap.dedent(text).strip(), "  ") if text else None


def main(arguments: Sequence[str] | None = None) -> int:
    """Carry out one command; returns the exit code."""
    top = parser()
    try:
        given, extra = top.parse_known_args(arguments)
        _parser_of(top, given).refuse_unknown(extra)
        if given.version:
            from gradsift.version import __version__

            print(f"gradsift {__version__}")
            return 0
        if given.command is None:
            top.print_help()
            return 0
        return _carry_out(given)
    except UsageError as problem:
        print(f"gradsift: {problem}", file=sys.stderr)
        return 2
    except GradsiftError as problem:  # bad input that only showed once the parts were built
        print(f"gradsift: {problem}", file=sys.stderr)
        return 2
    except RunError as problem:
        print(f"gradsift: {problem}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("gradsift: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        sys.stderr.close()
        return 1


def _parser_of(parser: argparse.ArgumentParser, given: argparse.Namespace) -> Parser:
    """The parser of the command, and of its action, that was given: it knows its flags."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            chosen = action.choices.get(str(getattr(given, action.dest, None)))
            if chosen is not None:
                return _parser_of(chosen, given)
    assert isinstance(parser, Parser)
    return parser


def _carry_out(given: argparse.Namespace) -> int:
    # Imported here: torch takes longer to import than --help should take.
    if given.command == "list":
        from gradsift.cli.listing import print_all

        return print_all()
    if given.command == "completion":
        from gradsift.cli.listing import print_completion

        return print_completion(parser(), given.shell)
    if given.command == "run":
        from gradsift.cli.running import run

        return run(given)
    if given.command == "resume":
        from gradsift.cli.running import resume

        return resume(given)
    if given.command == "compare":
        from gradsift.cli.comparing import compare

        return compare(given)
    if given.command == "report":
        from gradsift.cli.reporting import report

        return report(given)
    if given.command == "paper":
        return paper.paper(given)
    if given.command == "regret":
        return regret.regret(given)
    from gradsift.cli.data import data

    return data(given)
