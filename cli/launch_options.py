"""The flags of `xl launch`, one for each setting, under headings, and what becomes of other words."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from ..configs.errors import XlError, raise_all
from ..configs.guesses import nearest
from ..configs.keys import OTHER_NAMES, Key, all_keys, nearest_key, parse, parse_mapping
from ..configs.layers import Flags, printed
from ..configs.unbuilt import choices_to_come, is_unbuilt
from .given import given

F = TypeVar("F", bound=Callable[..., object])

_META, _EVERYTHING = "xl.flags", "xl.help_all"

GROUPS: tuple[tuple[str, tuple[str, ...]], ...] = (
    (
        "Processes and devices",
        (
            "num_processes",
            "num_processes_per_machine",
            "cpu",
            "gpu_ids",
            "num_cpu_threads_per_process",
            "enable_cpu_affinity",
        ),
    ),
    (
        "Training",
        (
            "backend",
            "mixed_precision",
            "gradient_accumulation_steps",
            "gradient_accumulation_divide_by",
            "seed",
            "exact_random",
        ),
    ),
    ("Script", ("distributed_by", "data")),
    ("Output", ("log_dir", "tee", "show_ranks")),
    (
        "Starting and failures",
        ("start", "main_process_port", "env", "max_restarts", "grace_period_s", "debug"),
    ),
    (
        "Many machines",
        (
            "num_machines",
            "machine_rank",
            "main_process_ip",
            "monitor_interval",
            "rdzv_backend",
            "rdzv_conf",
            "same_network",
            "hosts",
            "ssh_options",
            "role",
        ),
    ),
    ("FSDP", ("fsdp.*",)),
    ("DeepSpeed", ("deepspeed.*",)),
    ("torch.compile", ("dynamo.*",)),
    ("Device mesh", ("parallelism.*",)),
)
"""The headings of the help, in order, with the settings below each."""

_SHORT = {"tee": "-t"}
_VALUED_SWITCHES = ("fsdp.", "deepspeed.", "parallelism.")
"""Sections whose switches take true or false, as Accelerate's flags do; other switches are --x and --no-x."""

_SWITCHES: dict[str, tuple[tuple[str, object], ...]] = {
    "--use-fsdp": (("backend", "fsdp"),),
    "--use-deepspeed": (("backend", "deepspeed"),),
    "--multi-gpu": (("backend", "ddp"), ("cpu", False)),
    "--use-parallelism-config": (),
}
"""Accelerate's words for settings with another name here; the last says what the sizes say already."""


@dataclass(slots=True)
class _Collected:
    flags: Flags = field(default_factory=Flags)
    problems: list[XlError] = field(default_factory=lambda: list[XlError]())

    def set(self, key: str, value: object, place: str) -> None:
        if key in self.flags and self.flags[key] != value:
            other = self.flags.places[key]
            self.problems.append(
                XlError(
                    f"{other} and {place} contradict each other",
                    f"{other} asks for {key}={printed(self.flags[key])}, {place} for {key}={printed(value)}",
                    "keep one of the two",
                )
            )
            return
        self.flags.set(key, value, place)


def _collected(ctx: click.Context) -> _Collected:
    found: object = ctx.meta.setdefault(_META, _Collected())
    assert isinstance(found, _Collected)
    return found


def collect_flags(ctx: click.Context) -> Flags:
    """Profile key -> typed value of the settings' flags that were typed, for `resolve`.

    Raises:
        XlError: with everything that is wrong with their values.
    """
    collected = _collected(ctx)
    raise_all(collected.problems)
    return collected.flags


class _Setting(click.Option):
    """The flag of one setting. It goes to `collect_flags`, not to the command's function."""

    def __init__(self, key: Key, heading: str) -> None:
        self.key, self.heading = key, heading
        self.is_pair = key.kind == "bool" and not key.name.startswith(_VALUED_SWITCHES)
        names = f"{key.flag}/{key.flag.replace('--', '--no-', 1)}" if self.is_pair else key.flag
        super().__init__(
            [_SHORT[key.name], names] if key.name in _SHORT else [names],
            type=bool if self.is_pair else str,
            default=None,
            multiple=key.kind == "mapping",
            metavar=None if self.is_pair else _metavar(key),
            help=_help(key),
            expose_value=False,
            callback=self._store,
        )

    def _store(self, ctx: click.Context, _param: click.Parameter, value: Any) -> None:
        if ctx.get_parameter_source(self.name or "") is not ParameterSource.COMMANDLINE:
            return
        collected = _collected(ctx)
        place = self.key.flag
        try:
            if self.is_pair:
                place = place if value else place.replace("--", "--no-", 1)
                typed: object = value
            elif self.key.kind == "mapping":
                typed = parse_mapping(self.key, value, place)
            else:
                typed = parse(self.key, value, place)
        except XlError as problem:
            collected.problems.append(problem)
            return
        collected.set(self.key.name, typed, place)


class _Switch(click.Option):
    """One of Accelerate's words that stand for settings."""

    heading = ""

    def __init__(self, flag: str) -> None:
        super().__init__(
            [flag], is_flag=True, default=None, hidden=True, expose_value=False, callback=self._store
        )
        self.flag = flag

    def _store(self, ctx: click.Context, _param: click.Parameter, value: Any) -> None:
        if value:
            for key, wanted in _SWITCHES[self.flag]:
                _collected(ctx).set(key, wanted, self.flag)


def _metavar(key: Key) -> str:
    if key.kind == "choice":
        joined = "|".join(str(choice) for choice in key.choices)
        return joined if len(joined) <= 30 else "WORD"
    if key.path:
        return "PATH"
    return {"whole": "N", "number": "X", "bool": "true|false", "list": "LIST", "mapping": "NAME=VALUE"}.get(
        key.kind, "TEXT"
    )


def _help(key: Key) -> str:
    text = key.description
    if key.kind == "choice" and _metavar(key) == "WORD":
        text += f" One of {', '.join(str(choice) for choice in key.choices)}."
    if is_unbuilt(key.name):
        text += " Not in this version."
    elif to_come := choices_to_come(key.name, key.choices):
        text += f" Not in this version: {', '.join(to_come)}."
    if key.default in (None, (), False) or key.kind == "mapping":
        return text
    return f"{text} [{'true' if key.default is True else key.default}]"


def setting_parameters() -> Iterator[click.Option]:
    """An option for every setting, in the order of the headings."""
    known = all_keys()
    for heading, patterns in GROUPS:
        for pattern in patterns:
            section = pattern.removesuffix("*")
            names = [
                name for name in known if name == pattern or (section != pattern and name.startswith(section))
            ]
            yield from (_Setting(known[name], heading) for name in names)
    yield _Setting(known["preset"], "Profiles")
    yield from (_Switch(flag) for flag in _SWITCHES)


class SettingsCommand(click.Command):
    """A command with the settings' flags: dashes or underscores, headings in the help, hints."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        extra.setdefault("token_normalize_func", _dashes)
        extra.setdefault("help_option_names", ["-h", "--help"])
        return super().make_context(info_name, args, parent, **extra)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            raise unknown_option(error.option_name, ctx) from None
        except click.UsageError as error:
            error.ctx = error.ctx or ctx
            raise

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        from .settings_help import write_options  # nobody else needs it

        write_options(self.get_params(ctx), ctx, formatter, in_full=bool(ctx.meta.get(_EVERYTHING)))


class LaunchCommand(SettingsCommand):
    """`xl launch`: what follows the script's name is the script's own and is not looked at."""

    allow_interspersed_args = False


def _dashes(name: str) -> str:
    return name.replace("_", "-")


def unknown_option(name: str, ctx: click.Context) -> XlError:
    """The error for a flag that `xl launch` does not have."""
    from .refused_flags import refusal

    why = refusal(name)
    if why is not None:
        return XlError(f"{name} is not supported", why.why, why.fix)
    flags = [opt for param in ctx.command.params for opt in (*param.opts, *param.secondary_opts)]
    word = name.lstrip("-").replace("-", "_")
    guess = None if word in OTHER_NAMES else nearest(name, flags)
    if guess is None and (key := nearest_key(word)):
        guess = all_keys()[key].flag
    command = " ".join(ctx.command_path.split())
    return XlError(
        f"unknown option {name}",
        f"{command} has no such option",
        f"did you mean {guess}?" if guess else f"{command} --help lists the options",
    )


def _option(*names: str, heading: str, **attributes: Any) -> Callable[[F], F]:
    class Headed(click.Option):
        pass

    Headed.heading = heading  # type: ignore[attr-defined]
    return click.option(*names, cls=Headed, **attributes)


def setting_options(command: F) -> F:
    """Add the flags of all settings, and `--profile` and `--config-file`; use with `cls=SettingsCommand`.

    The function receives `profile` and `config_file`; the settings come from `collect_flags(ctx)`.
    """
    for option in reversed(list(setting_parameters())):
        _add(command, option)
    named: Sequence[Callable[[F], F]] = (
        _option(
            "--config-file",
            heading="Profiles",
            callback=given,
            metavar="PATH",
            help="Settings file, xl's or Accelerate's.",
        ),
        _option(
            "--profile", heading="Profiles", callback=given, metavar="NAME", help="Profile or preset to use."
        ),
    )
    everything = click.option(
        "--help-all",
        is_flag=True,
        expose_value=False,
        is_eager=True,
        callback=_help_all,
        help="Describe every option, those not in this version, too.",
    )
    for decorate in (*named, everything):
        command = decorate(command)
    return command


def _help_all(ctx: click.Context, _param: click.Parameter, wanted: bool) -> None:
    if wanted:
        ctx.meta[_EVERYTHING] = True
        click.echo(ctx.get_help())
        ctx.exit()


def launch_options(command: F) -> F:
    """Add everything that `xl launch` takes; use with `cls=LaunchCommand`.

    The function receives `script`, `script_args`, `module`, `no_python`, `dry_run`, `quiet`, `explain_split`,
    `profile` and `config_file`; the settings come from `collect_flags(ctx)`.
    """
    command = setting_options(command)
    own: Sequence[Callable[[F], F]] = (
        click.argument("script_args", nargs=-1, type=click.UNPROCESSED, metavar="[ARGS]..."),
        click.argument("script", callback=given, metavar="SCRIPT"),
        _option(
            "--explain-split",
            heading="Output",
            is_flag=True,
            help="Say at the end how each kind of module call was split, and why.",
        ),
        _option(
            "-q",
            "--quiet",
            heading="Output",
            is_flag=True,
            help="Print nothing but the script's output and errors.",
        ),
        _option(
            "--no-python",
            heading="Script",
            is_flag=True,
            help="SCRIPT is no Python program. Not in this version.",
        ),
        _option(
            "-m", "--module", heading="Script", is_flag=True, help="SCRIPT is a module, as in python -m."
        ),
        click.option("--dry-run", is_flag=True, help="Print what would run, and run nothing."),
    )
    for decorate in own:
        command = decorate(command)
    return command


def _add(command: Callable[..., object], option: click.Option) -> None:
    """What click's own decorators do with a parameter."""
    if isinstance(command, click.Command):
        command.params.append(option)
        return
    params: list[click.Parameter] = command.__dict__.setdefault("__click_params__", [])
    params.append(option)
