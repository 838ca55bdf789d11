"""Host lists: expanding, compressing, and that one gives back the other."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from whorl.errors import InputError
from whorl.store.hostlist import compress, expand
from whorl.tests.sizes import count


@pytest.mark.parametrize(
    ("hosts", "names"),
    [
        ("", []),
        ("n1", ["n1"]),
        ("n[01-03,07]", ["n01", "n02", "n03", "n07"]),
        ("n[9-11]", ["n9", "n10", "n11"]),
        ("n[099-101]", ["n099", "n100", "n101"]),
        ("a, b ,c1", ["a", "b", "c1"]),
        ("r[1-2]c[01-02]-ib", ["r1c01-ib", "r1c02-ib", "r2c01-ib", "r2c02-ib"]),
        ("c002-[004,011],login", ["c002-004", "c002-011", "login"]),
        ("n[3,1-2],m5,n[1-2]", ["n1", "n2", "n3", "m5", "n1", "n2"]),
        ("@all,n1!n2,n1&n2,n1^n2,n*,n?", ["@all", "n1!n2", "n1&n2", "n1^n2", "n*", "n?"]),
    ],
)
def test_expand(hosts: str, names: list[str]) -> None:
    assert expand(hosts) == names


@pytest.mark.parametrize(
    "hosts",
    [
        *("n[1-2", "n1-2]", "n[[1]]", "n[a]", "n[3-1]", "n[]", "n[1-9999999]", "n[0-999][0-999]x[1-2]", "]n["),
        *("n[1-3]!n2", "n[1-3]&n2", "n[1-3]^n2", "@g[1-2]", "n[1-2]*", "n[1-9/2]", "n[9-011]", "a b[1-2]"),
        *(f"n[{'9' * 5000}]", f"n[1-{'9' * 30}]", "n[١-٣]", "n[-1]"),
    ],
)
def test_what_is_no_host_list(hosts: str) -> None:
    with pytest.raises(InputError, match="host"):
        expand(hosts)


@pytest.mark.parametrize(
    ("names", "hosts"),
    [
        ([], ""),
        (["n2", "n1", "n1"], "n[1-2]"),
        (["n9", "n10"], "n[9-10]"),
        (["n09", "n10"], "n[09-10]"),
        (["n9", "n010"], "n[9,010]"),
        (["n1", "n01", "n001"], "n[1,01,001]"),
        (["c002-004", "c002-011", "c003-001"], "c002-[004,011],c003-001"),
        (["login", "login1"], "login,login1"),
        (["n1-ib", "n2-ib"], "n1-ib,n2-ib"),
    ],
)
def test_compress(names: list[str], hosts: str) -> None:
    assert compress(names) == hosts


@pytest.mark.long
def test_what_a_list_means_is_bounded_as_a_whole() -> None:
    assert len(expand("n[1-600000],m[1-2]")) == 600_002
    with pytest.raises(InputError, match="more than 1,000,000 hosts"):
        expand("n[1-600000],m[1-600000]")


NAMES = st.from_regex(r"[a-z]{0,2}[0-9]{0,3}[a-z-]{1,2}[0-9]{0,4}", fullmatch=True)


@settings(max_examples=count(100, short=15), deadline=None)
@given(st.sets(NAMES, max_size=40))
@example({"n98", "n99", "n100", "n099", "n0099"})
@example({"n" + "9" * 15, "n" + "1" * 30})
@example({"n١", "n٢", "n1"})
def test_what_was_compressed_expands_to_the_same(names: set[str]) -> None:
    back = expand(compress(names))
    assert len(back) == len(names)
    assert set(back) == names
