"""The command line: `muse-spark VERB`. Each verb loads what it needs when it is called."""

from __future__ import annotations

import os
import sys
import traceback

import typer

from muse_spark_ray.cli import checks, query, run, setup
from muse_spark_ray.errors import MuseSparkError

app = typer.Typer(
    name="muse-spark",
    help="Which combination of training tricks is worth its money: cost x accuracy Pareto fronts for your model and data.",
    epilog="Flags that work with every verb: --debug (show tracebacks), --no-color. Exit codes: 0 done, 1 failed, 2 usage or "
    "config, 3 some trials failed, 4 stopped by budget or deadline, 5 cluster or store not reachable, 130 interrupted.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)
run.add_to(app)
query.add_to(app)
checks.add_to(app)
setup.add_to(app)


@app.callback()
def _root(
    version: bool = typer.Option(False, "--version", help="Show the version and exit.", is_eager=True),
) -> None:
    if version:
        from muse_spark_ray import __version__

        print(f"muse-spark {__version__}")
        raise typer.Exit()


def main() -> None:
    """Run the command line and exit with its code."""
    arguments = sys.argv[1:]
    is_debug = "--debug" in arguments
    if "--no-color" in arguments:
        os.environ["NO_COLOR"] = "1"
    try:
        app(args=[a for a in arguments if a not in ("--debug", "--no-color")], prog_name="muse-spark")
    except MuseSparkError as error:
        if is_debug:
            traceback.print_exc()
        tell(error)
        sys.exit(error.exit_code)
    except BrokenPipeError:
        # The reader, such as `head`, has enough; what Python would flush at exit has nowhere to go.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)


def tell(error: MuseSparkError) -> None:
    """Print an error as one message and, where there is one, a hint, on stderr."""
    print(f"error: {error.message}", file=sys.stderr)
    if error.hint:
        print(f"hint: {error.hint}", file=sys.stderr)
