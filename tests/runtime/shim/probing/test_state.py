"""State outside parameters and buffers: a trial puts it back, and a plan counts it as a setting."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false, reportPrivateUsage=false, reportAttributeAccessIssue=false

from __future__ import annotations

import array
import collections
import contextvars
import functools
import io
import logging
import os
import pathlib
import re
import threading
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from xl.runtime.shim.probing.decision import Split
from xl.runtime.shim.probing.settings import obstacle_of, settings_of
from xl.runtime.shim.probing.surroundings import Surroundings

from .bodies import B, Body, decide, why


class Slotted:
    """A counter without a dictionary."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0

    def step(self) -> int:
        self.count += 1
        return self.count


class Tally:
    """A counter that is called."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> int:
        self.count += 1
        return self.count


class Numbers(list[int]):
    """A list with an attribute."""

    asked = 0


def take_slot(body: Body, h: Tensor) -> Tensor:
    return h * body.state.step()


def take_byte(body: Body, h: Tensor) -> Tensor:
    body.state[0] += 1
    return h * body.state[0]


def take_next(body: Body, h: Tensor) -> Tensor:
    return h * next(body.state)


def take_call(body: Body, h: Tensor) -> Tensor:
    return h * body.state()


def take_local(body: Body, h: Tensor) -> Tensor:
    body.state.count = getattr(body.state, "count", 0) + 1
    return h * body.state.count


def take_asked(body: Body, h: Tensor) -> Tensor:
    body.state.asked += 1
    return h * body.state.asked


def take_inner(body: Body, h: Tensor) -> Tensor:
    return h * body.state[0]["step"]()


def write_text(body: Body, h: Tensor) -> Tensor:
    body.state.write("a")
    return h * len(body.state.getvalue())


def closed() -> Callable[[], int]:
    """A counter in a closure."""
    count = 0

    def step() -> int:
        nonlocal count
        count += 1
        return count

    return step


def seen(step: Any) -> object:
    """What such a counter has come to."""
    return step.__closure__[0].cell_contents


HELD: dict[str, tuple[Callable[[], Any], Callable[..., Tensor], Callable[[Any], object]]] = {
    "slots": (Slotted, take_slot, lambda s: s.count),
    "bytearray": (lambda: bytearray(2), take_byte, bytes),
    "array": (lambda: array.array("i", [0, 0]), take_byte, bytes),
    "bound method": (lambda: Tally().__call__, take_call, lambda s: s.__self__.count),
    "partial": (lambda: functools.partial(Tally()), take_call, lambda s: s.func.count),
    "thread local": (threading.local, take_local, lambda s: dict(s.__dict__)),
    "subclass of list": (Numbers, take_asked, lambda s: s.asked),
    "nested function": (lambda: [{"step": closed()}], take_inner, lambda s: seen(s[0]["step"])),
    "stream of text": (io.StringIO, write_text, lambda s: s.getvalue()),
}  # fmt: skip


@pytest.mark.parametrize("kind", HELD)
def test_what_a_module_holds_is_as_before_after_a_trial(kind: str) -> None:
    make, use, look = HELD[kind]
    body = Body(use)
    body.state = make()
    before = look(body.state)
    found = decide(body, torch.randn(B, 6))
    assert look(body.state) == before
    assert not isinstance(found, Split)


def test_an_iterator_is_not_asked_by_a_trial() -> None:
    body = Body(take_next)
    body.state = iter(range(100))
    assert "iterator" in why(decide(body, torch.randn(B, 6)))
    assert next(body.state) == 0


CALLS: list[int] = []
MODE = contextvars.ContextVar("MODE", default=0)
TABLE = np.zeros(2)
LOCAL = threading.local()
KEPT: dict[str, object] = {}


class _Teacher(nn.Module):
    """A module that another one uses without owning it."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        self.memory = nn.Buffer(torch.zeros(6))

    def forward(self, h: Tensor) -> Tensor:
        self.calls += 1
        self.memory += 1
        return h * self.calls


TEACHER = _Teacher()


@functools.lru_cache
def cached(size: int) -> int:
    CALLS.append(size)
    return len(CALLS)


@functools.lru_cache
def table(size: int) -> Tensor:
    return torch.randn(size)


def by_cache(body: Body, h: Tensor) -> Tensor:
    return h * cached(h.shape[1])


def by_table(body: Body, h: Tensor) -> Tensor:
    return h * table(h.shape[1])


def by_environment(body: Body, h: Tensor) -> Tensor:
    os.environ["XL_TEST_COUNT"] = str(int(os.environ.get("XL_TEST_COUNT", "0")) + 1)
    return h * int(os.environ["XL_TEST_COUNT"])


def by_name(body: Body, h: Tensor) -> Tensor:
    globals()["KEPT_NUMBER"] = globals().get("KEPT_NUMBER", 0) + 1
    return h * globals()["KEPT_NUMBER"]


def by_descriptor(body: Body, h: Tensor) -> Tensor:
    os.write(body.state, b"seen")
    return h


def by_context(body: Body, h: Tensor) -> Tensor:
    MODE.set(MODE.get() + 1)
    return h * MODE.get()


def by_local(body: Body, h: Tensor) -> Tensor:
    LOCAL.count = getattr(LOCAL, "count", 0) + 1
    return h * LOCAL.count


def by_teacher(body: Body, h: Tensor) -> Tensor:
    return TEACHER(h)


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:  # pyright: ignore[reportUnusedFunction]
    yield
    CALLS.clear()
    cached.cache_clear()
    table.cache_clear()
    globals().pop("KEPT_NUMBER", None)
    os.environ.pop("XL_TEST_COUNT", None)
    LOCAL.__dict__.clear()
    MODE.set(0)
    TABLE[:] = 0
    TEACHER.calls = 0
    TEACHER.memory.zero_()


def test_a_cache_of_functools_is_not_filled_by_a_trial() -> None:
    assert "CALLS" in why(decide(Body(by_cache), torch.randn(B, 6)))
    assert CALLS == []
    assert cached.cache_info().currsize == 0
    decide(Body(by_table), torch.randn(B, 6))
    assert table.cache_info().currsize == 0


def test_a_variable_of_the_environment_is_not_set_by_a_trial() -> None:
    assert "environment" in why(decide(Body(by_environment), torch.randn(B, 6)))
    assert "XL_TEST_COUNT" not in os.environ


def test_a_name_made_by_globals_runs_in_full() -> None:
    body = Body(by_name)
    obstacle = obstacle_of(body, Surroundings().find(body))
    assert obstacle is not None
    assert "globals()" in obstacle


def test_a_write_to_a_descriptor_does_not_happen() -> None:
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    body = Body(by_descriptor)
    body.state = writing
    assert "writes to a descriptor" in why(decide(body, torch.randn(B, 6)))
    with pytest.raises(BlockingIOError):
        os.read(reading, 9)
    os.close(reading)
    os.close(writing)


def test_context_and_thread_variables_are_put_back() -> None:
    assert "MODE" in why(decide(Body(by_context), torch.randn(B, 6)))
    assert MODE.get() == 0
    assert "LOCAL" in why(decide(Body(by_local), torch.randn(B, 6)))
    assert LOCAL.__dict__ == {}


def test_a_module_used_from_outside_is_put_back() -> None:
    assert "TEACHER" in why(decide(Body(by_teacher), torch.randn(B, 6)))
    assert TEACHER.calls == 0
    assert TEACHER.memory.tolist() == [0] * 6


class Base:
    """Its attribute is a setting of whoever reads it through a property."""

    flag = 0


class Conf(Base):
    """Nothing of its own but the property."""

    @property
    def on(self) -> bool:
        return type(self).flag > 2


def read_table(body: Body, h: Tensor) -> Tensor:
    return h - h.mean(0) if TABLE[0] > 2 else h


def read_property(body: Body, h: Tensor) -> Tensor:
    return h - h.mean(0) if body.state.on else h


def read_context(body: Body, h: Tensor) -> Tensor:
    return h - h.mean(0) if MODE.get() > 2 else h


def read_attribute(body: Body, h: Tensor) -> Tensor:
    return h - h.mean(0) if body.state[0] > 2 else h


def read_length(body: Body, h: Tensor) -> Tensor:
    return h - h.mean(0) if len(body.state) > 2 else h


def read_environment(body: Body, h: Tensor) -> Tensor:
    return h - h.mean(0) if os.environ.get("XL_TEST_COUNT") else h


def read_slot(body: Body, h: Tensor) -> Tensor:
    return h - h.mean(0) if body.state.count > 2 else h


def read_outside(body: Body, h: Tensor) -> Tensor:
    return h - h.mean(0) if TEACHER.calls > 2 else h


def _set_state(value: object) -> Callable[[Body], None]:
    def change(body: Body) -> None:
        body.state[0] = value

    return change


CHANGES: dict[str, tuple[Callable[..., Tensor], Callable[[], Any], Callable[[Body], object]]] = {
    "global array": (read_table, lambda: None, lambda _: TABLE.__setitem__(0, 3)),
    "array": (read_attribute, lambda: np.zeros(2), _set_state(3)),
    "long array": (read_attribute, lambda: np.zeros(5000), _set_state(3)),
    "array of Python": (read_attribute, lambda: array.array("i", [0]), _set_state(3)),
    "bytearray": (read_attribute, lambda: bytearray(1), _set_state(3)),
    "deque": (read_length, lambda: collections.deque([1]), lambda body: body.state.extend([1, 1])),
    "context": (read_context, lambda: None, lambda _: MODE.set(3)),
    "environment": (read_environment, lambda: None, lambda _: os.environ.__setitem__("XL_TEST_COUNT", "1")),
    "slot": (read_slot, Slotted, lambda body: setattr(body.state, "count", 3)),
    "module outside": (read_outside, lambda: None, lambda _: setattr(TEACHER, "calls", 3)),
}


@pytest.mark.parametrize("kind", CHANGES)
def test_another_value_is_another_plan(kind: str) -> None:
    use, make, change = CHANGES[kind]
    body = Body(use)
    body.state = make()
    variables = Surroundings().of(body)
    before = settings_of(body, variables)
    assert settings_of(body, variables) == before
    change(body)
    assert settings_of(body, variables) != before


def test_an_attribute_of_a_base_class_read_through_a_property_is_a_setting() -> None:
    body = Body(read_property)
    body.state = Conf()
    names = {variable.name for variable in Surroundings().of(body)}
    assert "flag" in names


def test_what_libraries_hold_is_no_obstacle() -> None:
    body = Body()
    body.state = [
        logging.getLogger("model"),
        re.compile("a"),
        pathlib.Path("a"),
        threading.Lock(),
        types.MappingProxyType({"a": 1}),
        weakref.ref(body),
        functools.partial(torch.nn.functional.gelu, approximate="tanh"),
    ]
    assert isinstance(decide(body, torch.randn(B, 6)), Split)
