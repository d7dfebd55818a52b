"""The variables: one for each setting, wrong ones with a hint, and xl's own left alone."""

from __future__ import annotations

from xl.configs.errors import XlError
from xl.configs.keys import all_keys
from xl.configs.variables import variables_layer


def problems(**environ: str) -> str:
    found: list[XlError] = []
    variables_layer(environ, found)
    return "\n".join(map(str, found))


def test_variables_become_typed_values() -> None:
    found: list[XlError] = []
    environ = {
        "XL_NUM_PROCESSES": "2",
        "XL_FSDP_OFFLOAD_PARAMS": "true",
        "XL_HOSTS": "a,b",
        "XL_SEED": "null",
    }
    layer = variables_layer(
        environ | {"OTHER": "x", "XL_CONFIG_HOME": "/x", "XL_WORKER_SETTINGS": "{}"}, found
    )
    assert found == []
    assert {name: value.value for name, value in layer.values.items()} == {
        "num_processes": 2,
        "fsdp.offload_params": True,
        "hosts": ("a", "b"),
        "seed": None,
    }


def test_wrong_variables_are_all_reported() -> None:
    text = problems(XL_NUM_PROCESES="2", XL_SEED="x", XL_CPU="", XL_ENV="A=1", XL_ZZZZZZ="1")
    assert "did you mean XL_NUM_PROCESSES?" in text
    assert "seed: 'x' is not a whole number" in text
    assert "cpu: the value is empty" in text
    assert "--env NAME=VALUE" in text
    assert "unset XL_ZZZZZZ" in text


def test_every_setting_has_a_variable() -> None:
    assert problems(**{key.variable: "null" for key in all_keys().values() if key.kind != "mapping"}) == ""
