"""`xl launch`: run a training script on one or many processes."""

from __future__ import annotations

from pathlib import Path

import click

from ..configs.env import read_environ
from ..configs.errors import XlError
from ..configs.resolve import resolve
from ..configs.worker import Target
from ..launcher.descriptors import fill_standard_descriptors
from ..launcher.executors import execute
from ..launcher.locate import locate
from ..launcher.machine import read_machine
from ..launcher.planner import make_plan
from ..launcher.ports import hold_port
from ..launcher.report import say, split_report
from ..launcher.runs import make_run_folder
from ..launcher.scan import scan_script
from .launch_options import LaunchCommand, collect_flags, launch_options


@click.command(cls=LaunchCommand)
@launch_options
@click.pass_context
def launch(
    ctx: click.Context,
    script: str,
    script_args: tuple[str, ...],
    module: bool,
    no_python: bool,
    dry_run: bool,
    quiet: bool,
    explain_split: bool,
    profile: str | None,
    config_file: str | None,
) -> int:
    """Run SCRIPT with its ARGS as it is, on the processes that the settings ask for."""
    if no_python:
        raise XlError(
            f"--no-python is not there yet ({script})",
            "this version of xl starts Python programs only",
            "name the Python file, or -m and its module",
        )
    fill_standard_descriptors()
    environ, cwd = read_environ(), Path.cwd()
    resolved = resolve(collect_flags(ctx), environ, cwd, profile, config_file)
    target = Target(script, script_args, module)
    scan = scan_script(locate(target, cwd))
    with hold_port(resolved.profile.main_process_port) as listener:
        machine = read_machine(environ, listener.getsockname()[1])
        places = {name: value.origin.place for name, value in resolved.values.items()}
        plan = make_plan(resolved.profile, resolved.label, target, machine, scan, places)
        if dry_run:
            click.echo(plan.render())
            return 0
        plan.check()
        if plan.log_folder is not None:
            make_run_folder(plan.log_folder)
        if not quiet:
            for warning in (*resolved.warnings, *plan.warnings):
                say(f"xl: warning: {warning}")
            say(plan.summary())
        code = execute(plan, listener)
        if code == 0 and (explain_split or not quiet):
            say(split_report(plan.log_folder, in_full=explain_split))
        return code
