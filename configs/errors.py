"""The one error type that users see: what is wrong, why, and how to fix it."""

from __future__ import annotations

from collections.abc import Iterable


class XlError(Exception):
    """A mistake or a limit that the user can act on; the command line prints it without a traceback.

    Args:
        what: what is wrong, with the value, in one line and without a full stop.
        why: the reason, naming where the value came from (flag, file and line, variable).
        fix: what to type or change.
        exit_code: 2 for wrong usage (the default), 1 for a failure while running.
    """

    def __init__(self, what: str, why: str, fix: str, *, exit_code: int = 2) -> None:
        super().__init__(what, why, fix)
        self.what, self.why, self.fix, self.exit_code = what, why, fix, exit_code

    def __str__(self) -> str:
        return "\n".join(
            f"{label:7s}{text}".replace("\n", "\n       ")
            for label, text in (("error:", self.what), ("why:", self.why), ("fix:", self.fix))
        )

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (self.what, self.why, self.fix, self.exit_code)


def _rebuild(what: str, why: str, fix: str, exit_code: int) -> XlError:
    return XlError(what, why, fix, exit_code=exit_code)


class XlErrors(XlError):
    """Several problems found in one pass, reported together."""

    def __init__(self, problems: Iterable[XlError]) -> None:
        self.problems = tuple(problems)
        if not self.problems:
            raise AssertionError("XlErrors needs at least one problem")
        first = self.problems[0]
        super().__init__(first.what, first.why, first.fix, exit_code=max(p.exit_code for p in self.problems))

    def __str__(self) -> str:
        return "\n\n".join(str(problem) for problem in self.problems)

    def __reduce__(self) -> tuple[object, ...]:
        return XlErrors, (self.problems,)


def raise_all(problems: Iterable[XlError]) -> None:
    """Raise every problem of the list at once; do nothing when it is empty."""
    found = list(problems)
    if len(found) == 1:
        raise found[0]
    if found:
        raise XlErrors(found)
