"""The stand-in takes what CuPy 13 and 14 take, and whorl calls nothing else of CuPy."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from typing import Any

import pytest

from whorl.kernels.cupy_library import FOLDER
from whorl.tests.kernels.cupy_signatures import TABLE, signatures
from whorl.tests.kernels.fake_cupy import FakeCupy, FakeFunction, FakeModule, FakeRuntime

STANDS_FOR: dict[str, Any] = {
    "RawKernel.__call__": FakeFunction.__call__,
    "RawModule.get_function": FakeModule.get_function,
    "cuda.function.Module.get_function": FakeModule.get_function,
}
"""What no attribute of the stand-in is."""
ABSENT = ("cuda.nccl.", "RawKernel.kernel", "cuda.function.Function.ptr", "cuda.Device")
"""What the stand-in has in another form, or not at all."""


def parsed(signature: str) -> inspect.Signature:
    """The parameters of `(intptr_t dst, int kind=4) -> int`, without `self`."""
    inside = signature[1 : signature.rindex(")")]
    kind: Any = inspect.Parameter.POSITIONAL_OR_KEYWORD
    parameters = []
    for part in re.split(r",\s*(?![^()]*\))", inside) if inside else ():
        if part == "*":
            kind = inspect.Parameter.KEYWORD_ONLY
            continue
        name, _, default = part.partition("=")
        default_of: dict[str, Any] = {"default": default} if default else {}
        parameters.append(inspect.Parameter(name.split()[-1], kind, **default_of))
    return inspect.Signature([parameter for parameter in parameters if parameter.name != "self"])


def required(signature: inspect.Signature) -> list[str]:
    return [name for name, parameter in signature.parameters.items() if parameter.default is inspect.Parameter.empty]


@pytest.mark.parametrize("major", TABLE)
def test_the_stand_in_takes_what_cupy_takes(major: str) -> None:
    cupy = FakeCupy(FakeRuntime())
    for name, real in TABLE[major].items():
        if name.startswith(ABSENT):
            continue
        thing: Any = STANDS_FOR.get(name, cupy)
        for part in () if name in STANDS_FOR else name.split("."):
            thing = getattr(thing, part, None)
        if isinstance(real, int):
            assert thing in (None, real), name
        elif thing is not None:
            takes = inspect.signature(thing)
            arguments = ["x"] * len(required(parsed(real))) + ["x"] * (name in STANDS_FOR)
            if name in ("RawModule", "cuda.Stream"):  # only by keyword, and fewer of them
                assert set(takes.parameters) <= set(parsed(real).parameters), name
                continue
            if "._compile_module" in name:
                takes.bind("code", ("-DX",), backend="nvrtc")
                continue
            takes.bind(*arguments)
            with pytest.raises(TypeError):
                takes.bind(*arguments[:-1] if arguments else ["x"])


def uses() -> Iterator[tuple[str, ast.Call | None, str]]:
    """Names of CuPy that the code says, as `cuda.runtime.malloc`, with the call where it is one, and where."""
    for path in [*FOLDER.glob("*.py"), *FOLDER.with_name("probes").glob("*.py")]:
        tree = ast.parse(path.read_text())
        calls = {id(node.func): node for node in ast.walk(tree) if isinstance(node, ast.Call)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute):
                chain = ast.unparse(node)
                match = re.fullmatch(r"(?:self\.)?(?:_?cupy\.cuda\.)?_?runtime\.(\w+)", chain)
                name = f"cuda.runtime.{match[1]}" if match else ""
                if match := re.fullmatch(r"(?:self\.)?_?cupy\.([\w.]+)", chain):
                    name = match[1]
                if match := re.fullmatch(r"(?:self\._)?nccl\.([\w.]+)", chain):
                    name = f"cuda.nccl.{match[1]}"
                if name:
                    yield name, calls.get(id(node)), f"{path.name}, line {node.lineno}"
            elif isinstance(node, ast.Call) and ast.unparse(node.func) == "attribute":
                yield f"cuda.runtime.cudaDevAttr{ast.literal_eval(node.args[0])}", None, path.name


PARTS = {"cuda", "cuda.runtime", "cuda.driver", "cuda.nvrtc", "cuda.compiler", "cuda.nccl", "__version__"}


@pytest.mark.parametrize("major", TABLE)
def test_whorl_calls_nothing_that_this_cupy_does_not_have(major: str) -> None:
    called = set()
    for name, call, place in uses():
        if name in PARTS or name == "cuda.nccl.NcclCommunicator":
            continue
        assert name in TABLE[major], f"{place}: {name} is not in the table of CuPy {major}"
        called.add(name)
        if call is not None and not any(isinstance(argument, ast.Starred) for argument in call.args):
            real = parsed(str(TABLE[major][name]))
            keywords = {keyword.arg: None for keyword in call.keywords if keyword.arg}
            real.bind(*call.args, **keywords)
    unused = {name for name in TABLE[major] if name not in called and name.startswith("cuda.runtime.")}
    assert not unused, "the table has what nothing calls"


def test_the_table_is_what_the_cupy_here_says() -> None:
    cupy = pytest.importorskip("cupy")
    major = cupy.__version__.split(".")[0]
    if major not in TABLE:
        pytest.skip(f"no table of CuPy {major}")
    here = signatures(cupy)
    assert here == {name: TABLE[major][name] for name in here}
