"""`xl config`: the wizard, and the sub-commands that show, choose and change profiles."""

from __future__ import annotations

import click

from ..lazy import Lazy, LazyGroup

_HELP = ("-h", "--help")


class _Config(LazyGroup):
    lazy = {
        "show": Lazy("config.show", "show", "Print the profile in use, as it is written."),
        "list": Lazy("config.list", "list_profiles", "List your profiles and the presets."),
        "use": Lazy("config.use", "use", "Make a profile the active one."),
        "set": Lazy("config.set", "set_setting", "Change settings of a profile."),
        "unset": Lazy("config.unset", "unset", "Take settings out of a profile."),
        "explain": Lazy(
            "config.explain", "explain", "Say where each setting comes from and what it won against."
        ),
        "validate": Lazy("config.validate", "validate", "Find everything that is wrong with settings files."),
        "schema": Lazy("config.schema", "schema", "Print the JSON Schema of a settings file, for editors."),
        "path": Lazy("config.path", "path", "Print where settings are kept."),
        "import": Lazy(
            "config.import_file", "import_file", "Make a profile of an Accelerate or DeepSpeed file."
        ),
        "trust": Lazy("config.trust", "trust", "Let a project file set loader and ssh settings."),
    }

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Without a sub-command the arguments are the wizard's."""
        if not args or (args[0].startswith("-") and args[0] not in _HELP):
            args = ["wizard", *args]
        return super().parse_args(ctx, args)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name == "wizard":
            from .ask import wizard

            wizard.name = None
            return wizard
        return super().get_command(ctx, cmd_name)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        self.format_commands(ctx, formatter)
        from .ask import wizard

        wizard.format_options(click.Context(wizard, ctx), formatter)


@click.group(cls=_Config, options_metavar="[ANSWERS]", subcommand_metavar="[COMMAND [ARGS]...]")
def config() -> None:
    """Ask a few questions and write a profile. Every answer can be given as an option instead."""
