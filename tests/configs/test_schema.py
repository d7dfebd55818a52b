"""Pydantic's reading of the profile and the table's are the same, key by key."""

from __future__ import annotations

import math
from dataclasses import fields
from typing import Any

import pytest
from pydantic import ValidationError

from xl.configs.errors import XlError
from xl.configs.keys import Key, all_keys, check, nest, variable_key
from xl.configs.profile import SECTIONS, Profile, make_profile
from xl.configs.schema import adapter, json_schema

KEYS = {**all_keys(), "env.NAME": variable_key("NAME")}
VALUES: tuple[object, ...] = (
    *(-1, 0, 1, 2, 3, 4, 65535, 65536, 10**30, -(10**400), 10**400),
    *(0.0, -0.5, 0.5, 1.0, 2.0, 1e308, math.nan, math.inf, -math.inf),
    *(True, False),
    *("", " ", "1", "2", "2.5", "true", "no", "NO", "none", "all", "0,1", "a=b", "é\udcff", "x" * 5000),
    *([], ["a"], ["a", 1], [None], [["a"]], ("a",), (1,)),
    *({}, {"A": "b"}, {"A": 1}, {1: "b"}, {"A": None}, {"A": {"B": "c"}}),
    *(b"bytes", 1j, object(), {"a"}),
)
NOT_STRICT = (True, 1.0, 2.0)
"""Python has them equal to the choices 1 and 2, and pydantic does not look further."""


def pydantic_takes(key: Key, value: object) -> bool:
    profile = make_profile(nest({key.name: value}))
    try:
        return adapter().validate_python(profile) == profile
    except ValidationError:
        return False


@pytest.mark.parametrize("name", KEYS)
def test_what_the_table_takes_and_refuses_is_what_pydantic_does(name: str) -> None:
    key = KEYS[name]
    taken = 0
    for value in (*VALUES, *key.choices, key.default, *(str(choice).lower() for choice in key.choices)):
        if value is None:  # asks for the default
            continue
        try:
            form = check(key, value, "here")
        except XlError:
            lax = isinstance(key.default, int) and key.kind == "choice" and value in NOT_STRICT
            assert lax or not pydantic_takes(key, value), value
        else:
            assert pydantic_takes(key, form), value
            taken += 1
    assert taken  # else this proves nothing


@pytest.mark.parametrize("name", KEYS)
def test_the_ends_of_a_range_are_in_it(name: str) -> None:
    key = KEYS[name]
    step = 1 if key.kind == "whole" else 0.5
    for end, beyond in ((key.minimum, -step), (key.maximum, step)):
        if end is not None:
            inside = check(key, end, "here")
            assert pydantic_takes(key, inside)
            with pytest.raises(XlError, match=name):
                check(key, end + beyond, "here")
            assert not pydantic_takes(key, end + beyond)


def test_the_defaults_are_valid() -> None:
    assert adapter().validate_python(Profile()) == Profile()
    for name, key in all_keys().items():
        assert key.default is None or check(key, key.default, "here") == key.default, name


def test_a_profile_is_made_of_nested_values() -> None:
    profile = make_profile({"seed": 1, "fsdp": {"version": 1}, "env": {"A": "b"}})
    assert (profile.seed, profile.fsdp.version, profile.env) == (1, 1, {"A": "b"})
    assert profile.deepspeed == Profile().deepspeed


def test_every_section_is_listed() -> None:
    made = {it.name for it in fields(Profile) if it.type in SECTIONS.values()}
    assert made == set(SECTIONS)


def test_the_json_schema_says_what_the_table_says() -> None:
    schema: dict[str, Any] = json_schema()
    definitions, properties = schema["$defs"], schema["properties"]
    for name, key in all_keys().items():
        head, dot, inner = name.partition(".")
        section = definitions[SECTIONS[head].__name__]["properties"] if dot else properties
        told = section[inner if dot else name]
        assert told["description"] == key.description
        shape = next(s for s in told.get("anyOf", [told]) if s.get("type") != "null")
        assert (shape.get("minimum"), shape.get("maximum")) == (key.minimum, key.maximum)
        assert tuple(shape.get("enum", [shape["const"]] if "const" in shape else [])) == key.choices
    assert schema["additionalProperties"] is False
    assert all(section["additionalProperties"] is False for section in definitions.values())
