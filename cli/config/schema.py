"""`xl config schema`: the JSON Schema of a settings file, by which editors complete and check it."""

from __future__ import annotations

import json
from typing import cast

import click

from ...configs.schema import json_schema


@click.command()
def schema() -> None:
    """Print the JSON Schema of a settings file."""
    document: dict[str, object] = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **json_schema(),
    }
    click.echo(json.dumps(_nullable(document), indent=2))


def _nullable(schema: dict[str, object]) -> dict[str, object]:
    """In files every setting may be null, which leaves the decision to xl."""
    definitions = cast("dict[str, dict[str, object]]", schema.get("$defs", {}))
    for section in (schema, *definitions.values()):
        properties = cast("dict[str, dict[str, object]]", section.get("properties", {}))
        for name, prop in properties.items():
            for ours in ("flag", "path"):
                prop.pop(ours, None)
            if "anyOf" not in prop and name != "schema_version":
                kept = {word: prop.pop(word) for word in ("description", "default", "title") if word in prop}
                properties[name] = {"anyOf": [prop, {"type": "null"}], **kept}
    return schema
