"""The command `xl`: finds the sub-command; every way it can fail becomes a message and an exit code."""

from __future__ import annotations

import gc
import os
import re
import sys
from importlib import import_module
from io import TextIOWrapper

import click

from ..configs.errors import XlError
from ..configs.guesses import nearest
from .lazy import Lazy, LazyGroup

_INTERRUPTED = 130
_LONG_WORD = re.compile(r"\S{1000,}")
"""What nobody typed by hand, and no path that is in use."""


class _Xl(LazyGroup):
    lazy = {
        "config": Lazy(
            "config.group", "config", "Answer a few questions and write a profile; show and change profiles."
        ),
        "launch": Lazy("launch", "launch", "Run a training script on one or many processes."),
        "env": Lazy("env", "env", "Show the hardware, the software and what is wrong with them."),
    }


def _print_version(ctx: click.Context, _param: click.Parameter, wanted: bool) -> None:
    if wanted:
        click.echo(f"xl {import_module('xl').__version__}")
        ctx.exit()


@click.group(cls=_Xl, context_settings={"help_option_names": ["-h", "--help"]}, no_args_is_help=True)
@click.option(
    "--version",
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=_print_version,
    help="Show the version.",
)
def xl() -> None:
    """Train a PyTorch script on one device or on many machines."""


def main(argv: list[str] | None = None) -> int:
    """Run `xl` with these arguments and return its exit code."""
    for stream in (sys.stdout, sys.stderr):
        # A file's name need not be text, and a terminal may lack a letter: neither is worth a traceback.
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        code: object = xl.main(args=argv, prog_name="xl", standalone_mode=False)
    except XlError as error:
        return _fail(error)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message())
        return 0
    except click.UsageError as error:
        return _fail(usage_error(error))
    except click.ClickException as error:
        return _fail(
            XlError(
                error.format_message(), "the command cannot go on", "correct it and run again", exit_code=1
            )
        )
    except (KeyboardInterrupt, click.Abort):
        return _INTERRUPTED
    except BrokenPipeError:
        # The reader of our output has gone, as `head` does; Python would complain once more when it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return code if isinstance(code, int) else 0


def run() -> int:
    """What the program `xl` and `python -m xl.cli` do: `main`, and a quick end of the interpreter."""
    code = main()
    # All that is left lives to the end. Looking through it for garbage is a tenth of what help costs.
    gc.freeze()
    return code


def _fail(error: XlError) -> int:
    click.echo(_LONG_WORD.sub(_shortened, str(error)), err=True)
    return error.exit_code


def _shortened(word: re.Match[str]) -> str:
    return f"{word[0][:60]}…{word[0][-20:]}"


def usage_error(error: click.UsageError) -> XlError:
    """What click found wrong with the command line, as what, why and fix."""
    command = " ".join(error.ctx.command_path.split()) if error.ctx else "xl"
    usage = " ".join(error.ctx.get_usage().split()) if error.ctx else "Usage: xl COMMAND"
    what = error.format_message().rstrip(".")
    guess: str | None = None
    if isinstance(error, click.NoSuchOption):
        what, guess = f"unknown option {error.option_name}", next(iter(error.possibilities or ()), None)
    elif error.ctx and isinstance(error.ctx.command, click.Group) and what.startswith("No such command"):
        name = what.split("'")[1]
        what = f"unknown command {name}"
        guess = nearest(name, error.ctx.command.list_commands(error.ctx))
        if guess is None and name.endswith(".py"):
            guess = f"launch {name}"
    fix = f"did you mean {guess}?" if guess else f"{command} --help lists what it takes"
    return XlError(what[:1].lower() + what[1:], usage.replace("Usage:", "usage is", 1), fix)
