"""`xl env`: shows the hardware, the software and the settings, and says what is wrong and how to fix it.

Answers within a quarter of a second of CPU time: torch is never imported, and lines are laid out here:
rich and psutil together would take most of that time.
"""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path

import click

from ..configs import paths
from ..configs.env import read_environ
from ..launcher.findings import Facts, Finding, Severity, find_problems
from ..launcher.hardware.snapshot import read_hardware
from ..launcher.hardware.software import read_software
from ..launcher.hardware.variables import training_variables
from .env_report import Report, Section, as_data, sections
from .env_settings import settings_files, settings_findings, wishes_of

_COLOURS: Mapping[Severity, str] = {"error": "red", "warning": "yellow", "note": "cyan"}
_NOTHING_WRONG = "nothing wrong found"


@click.command("env")
@click.option("--json", "as_json", is_flag=True, help="Print JSON with stable names.")
@click.option("--text", "as_text", is_flag=True, help="Print the form for bug reports, on a terminal too.")
def env(as_json: bool, as_text: bool) -> None:
    """Show the hardware, the software, the settings in use, and what is wrong with them.

    Secrets in variables and settings are masked.
    """
    if as_json and as_text:
        raise click.UsageError("--json and --text are two forms: pass one of them")
    report = gather(read_environ(), Path.cwd())
    if as_json:
        import json

        click.echo(json.dumps(as_data(report), indent=2))
    elif as_text or not sys.stdout.isatty():
        click.echo("\n".join(pasteable(report)))
    else:
        width = min(shutil.get_terminal_size().columns, 120)
        click.echo("\n".join(for_terminal(report, width)))


def gather(environ: Mapping[str, str], cwd: Path) -> Report:
    """Read everything that the report holds."""
    hardware = read_hardware(environ, {"logs of runs": paths.runs_folder(environ), "working directory": cwd})
    software = read_software()
    files = settings_files(environ, cwd)
    settings = tuple(settings_findings(environ, cwd, files))
    findings = find_problems(Facts(hardware, software, environ, wishes_of(files), settings))
    return Report(hardware, software, files, training_variables(environ), findings)


def pasteable(report: Report) -> Iterator[str]:
    """Lines of plain Markdown, for bug reports."""
    for section in sections(report):
        yield f"### {section.title}"
        for label, text in section.rows:
            indent = "  " if label.startswith("  ") else ""
            yield f"{indent}- {label.strip()}: {_one_line(text)}" if label else f"- {_one_line(text)}"
        yield ""
    yield "### Findings"
    for finding in report.findings:
        yield f"- {finding.severity}: {finding.what}"
        yield f"  - why: {finding.why}"
        yield f"  - fix: {finding.fix}"
    if not report.findings:
        yield f"- {_NOTHING_WRONG}"


def for_terminal(report: Report, width: int) -> Iterator[str]:
    """Coloured lines, wrapped to the terminal."""
    for section in sections(report):
        yield from _section(section, width)
        yield ""
    yield click.style("Findings", bold=True)
    for finding in report.findings:
        yield from _finding(finding, width)
    if not report.findings:
        yield click.style(f"  {_NOTHING_WRONG}", fg="green")


def _section(section: Section, width: int) -> Iterator[str]:
    yield click.style(section.title, bold=True)
    widest = min(max((len(label) for label, _ in section.rows), default=0), 28)
    for label, text in section.rows:
        head = f"  {label:{widest}}  " if label else "  "
        lines = _wrapped(_one_line(text), width - len(head), long_words=True) or [""]
        yield click.style(head, fg="blue") + lines[0]
        for line in lines[1:]:
            yield " " * len(head) + line


def _finding(finding: Finding, width: int) -> Iterator[str]:
    colour = _COLOURS[finding.severity]
    for label, text, style in (
        (f"{finding.severity}:", finding.what, colour),
        ("why:", finding.why, None),
        ("fix:", finding.fix, None),
    ):
        lines = _wrapped(text, width - 11, long_words=False)
        yield click.style(f"  {label:8s} ", fg=style, bold=style is not None) + lines[0]
        for line in lines[1:]:
            yield " " * 11 + line


def _wrapped(text: str, width: int, *, long_words: bool) -> list[str]:
    """Lines no wider than `width`; `long_words` cuts wider words, which commands to copy must not be."""
    return textwrap.wrap(text, max(width, 20), break_long_words=long_words, break_on_hyphens=False)


def _one_line(text: str) -> str:
    return text.replace("\r", "\\r").replace("\n", "\\n")
