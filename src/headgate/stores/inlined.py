"""The step of a limit, put in the place where it would be called: what `headgate.stores.unrolled` writes checks of.

An algorithm is one function, its step (see `headgate.core.algorithms.Transition`), and it is the only place where that
algorithm is written down. To call it costs a decision of several limits a third of its time: the call, the pair that it
returns, and a `Decision` for each limit, most of which nobody reads. So a check does not call it. The lines of the
step, read from its source, stand in the check itself, and where they return, the check goes on with what they return.
Nothing in them is changed but this:

* Names that the step has from elsewhere, its settings such as the size of a unit, get the number of the limit.
* Branches are left out that the settings and the cost of the call decide beforehand: those for a cost below 0, for a
  charge that is given back, for a queue in what is not one.

So an admission in place is an admission of the step, with the same state after it. Where the source cannot be read, is
not what runs, or has something that cannot be moved, the step is called.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Sequence
from functools import lru_cache
from inspect import getsource
from textwrap import dedent
from types import CodeType, FunctionType
from typing import Any, NamedTuple, Protocol, cast

from headgate.core.algorithms import Transition

_POSITIVE = {ast.Lt: False, ast.LtE: False, ast.Gt: True}
"""What comparing a cost above 0 with 0 gives."""
_FIELDS = 10
"""The arguments of a `Decision` that an algorithm gives, the last ones with their defaults: 0."""


class StepShape(NamedTuple):
    """What the lines of a step depend on. Limits for which this is equal share them."""

    code: CodeType
    settled: tuple[tuple[str, bool | None], ...]
    """Settings that are True, False or None: branches that ask for them are decided beforehand."""


class Continuation(Protocol):
    """Writes what a check does where a step returns."""

    def told(self, state: str, fields: Sequence[str]) -> list[str]:
        """Return the lines for ``return state, Decision(*fields)``; all are expressions."""
        ...

    def asked(self, call: str) -> list[str]:
        """Return the lines for a ``return`` of what a function returns: a state and a decision."""
        ...


def shape_of(step: Transition) -> StepShape:
    """Return what tells `step` from others."""
    settled = [(name, value) for name, value in _settings(step).items() if value is None or type(value) is bool]
    return StepShape(cast("FunctionType", step).__code__, tuple(settled))


def names_of(step: Transition, number: int) -> dict[str, Any]:
    """Return all that the lines of `step` refer to, by the names that they have as those of a limit of that number."""
    function = cast("FunctionType", step)
    known = {name: function.__globals__[name] for name in function.__code__.co_names if name in function.__globals__}
    return {f"{name}_{number}": value for name, value in {**known, **_settings(step)}.items()}


def in_place(shape: StepShape, number: int, then: Continuation, *, looks: bool) -> list[str]:
    """Return the lines of a step, where `state`, `cost` and `now` are as in a call of it.

    The cost is above 0, or 0 if it just looks.
    """
    try:
        moved = _Mover(shape, number, then, looks=looks).moved(_body(shape.code))
    except _Immovable:
        return then.asked(f"_step{number}(state, {0 if looks else 'cost'}, now)")
    return ast.unparse(ast.Module(moved, [])).splitlines()


def _settings(step: Transition) -> dict[str, Any]:
    function = cast("FunctionType", step)
    cells = function.__closure__ or ()
    return {name: cell.cell_contents for name, cell in zip(function.__code__.co_freevars, cells, strict=True)}


class _Immovable(Exception):
    """A step cannot be read, or has something that would mean another thing elsewhere."""


def _body(code: CodeType) -> list[ast.stmt]:
    """Return the statements of a function in which no other function is made."""
    if code.co_cellvars or any(isinstance(each, CodeType) for each in code.co_consts):
        raise _Immovable
    (function,) = ast.parse(source_of(code)).body
    return cast("ast.FunctionDef", function).body


@lru_cache(maxsize=64)
def source_of(code: CodeType) -> str:
    """Return the source of a function, if it can be read and is what runs: a file may be newer than the process."""
    try:
        text = dedent(getsource(code))
    except OSError:
        raise _Immovable from None
    settings = [f"{name} = None" for name in code.co_freevars]  # those of the function that makes this one
    try:
        around = compile(
            "\n    ".join(["def make():", "pass", *settings, *text.splitlines()]), code.co_filename, "exec"
        )
    except SyntaxError:
        raise _Immovable from None
    made = next(each for each in around.co_consts if isinstance(each, CodeType))
    if any(isinstance(each, CodeType) and _does(each) == _does(code) for each in made.co_consts):
        return text
    raise _Immovable


def _does(code: CodeType) -> tuple[object, ...]:
    """Return what decides what a function does."""
    return code.co_code, code.co_consts, code.co_names, code.co_varnames, code.co_freevars


class _Mover(ast.NodeTransformer):
    """Makes the statements of a step those of a check."""

    def __init__(self, shape: StepShape, number: int, then: Continuation, *, looks: bool) -> None:
        self._own = {*shape.code.co_varnames} | {*dir(builtins)}
        self._number, self._then = number, then
        self._known: dict[str, Any] = {**dict(shape.settled), "since": None, **({"cost": 0} if looks else {})}
        self._loops = 0

    def moved(self, body: Sequence[ast.stmt]) -> list[ast.stmt]:
        """Return statements as those of the check."""
        found: list[ast.stmt] = []
        for each in body:
            there: Any = self.visit(each)
            found += there if isinstance(there, list) else [there]
        return found or [ast.Pass()]

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if isinstance(node.ctx, ast.Store):
            if node.id in {"cost", "now"}:
                raise _Immovable
            return node
        if node.id in self._known:
            return ast.Constant(self._known[node.id])
        return node if node.id in self._own else ast.Name(f"{node.id}_{self._number}", node.ctx)

    def visit_If(self, node: ast.If) -> Any:
        test = self.visit(node.test)
        if isinstance(test, ast.Constant):
            return self.moved(node.body if test.value else node.orelse)
        return ast.If(test, self.moved(node.body), self.moved(node.orelse) if node.orelse else [])

    def visit_IfExp(self, node: ast.IfExp) -> Any:
        test = self.visit(node.test)
        if isinstance(test, ast.Constant):
            return self.visit(node.body if test.value else node.orelse)
        return ast.IfExp(test, self.visit(node.body), self.visit(node.orelse))

    def visit_BoolOp(self, node: ast.BoolOp) -> Any:
        decisive = isinstance(node.op, ast.Or)  # the value that decides it, whatever comes after
        left: list[ast.expr] = []
        for value in map(self.visit, node.values):
            if not isinstance(value, ast.Constant):
                left.append(value)
            elif bool(value.value) is decisive:
                left.append(value)
                break
        if not left:
            return ast.Constant(not decisive)
        if isinstance(left[-1], ast.Constant) and (
            len(left) == 1 or all(isinstance(e, ast.Compare) for e in left[:-1])
        ):
            return left[-1]
        return left[0] if len(left) == 1 else ast.BoolOp(node.op, left)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> Any:
        operand = self.visit(node.operand)
        if isinstance(node.op, ast.Not):
            if isinstance(operand, ast.Constant):
                return ast.Constant(not operand.value)
            if isinstance(operand, ast.Name) and operand.id == "cost":
                return ast.Constant(False)
        return ast.UnaryOp(node.op, operand)

    def visit_Compare(self, node: ast.Compare) -> Any:
        made = ast.Compare(self.visit(node.left), node.ops, [self.visit(each) for each in node.comparators])
        operands = [made.left, *made.comparators]
        if all(isinstance(each, ast.Constant) for each in operands):
            return ast.Constant(eval(ast.unparse(made), {}))  # noqa: S307  two constants of our own
        match made:
            case ast.Compare(ast.Name("cost"), [op], [ast.Constant(0)]) if type(op) in _POSITIVE:
                return ast.Constant(_POSITIVE[type(op)])
        return made

    def visit_While(self, node: ast.While) -> ast.While:
        self._loops += 1
        made = ast.While(self.visit(node.test), self.moved(node.body), [])
        self._loops -= 1
        return made

    def visit_For(self, _: ast.For) -> ast.For:
        raise _Immovable  # no algorithm has one

    def visit_Return(self, node: ast.Return) -> list[ast.stmt]:
        if self._loops or node.value is None:
            raise _Immovable
        match node.value:
            case ast.Tuple([state, ast.Call(ast.Name("Decision"), arguments, [])]):
                fields = [ast.unparse(self.visit(each)) for each in arguments]
                fields += ["0"] * (_FIELDS - len(fields))
                lines = self._then.told(ast.unparse(self.visit(state)), fields)
            case _:
                lines = self._then.asked(ast.unparse(self.visit(node.value)))
        return ast.parse("\n".join(lines)).body
