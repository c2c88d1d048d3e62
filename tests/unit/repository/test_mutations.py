"""The faults that `tests.mutants` puts into code."""

from __future__ import annotations

from tests.mutants.__main__ import ACCEPTED
from tests.mutants.forked import ROOT, Mutant
from tests.mutants.mutations import mutations

SOURCE = '''
def f(x):
    """A docstring with 1 == 1."""
    log.info("1 and 2", number=3)
    failpoint("here")
    save(x)
    if x > 1 and not x:
        raise ValueError(f"{x + 1}")
    return x
'''


def test_each_fault_changes_one_place_of_the_code_and_no_words() -> None:
    found = mutations(SOURCE)
    assert {one.what for one in found} == {
        "left out: save(x)",
        "joined by or",
        "> became >=",
        "1 became 2",
        "not was lost",
    }
    for one in found:
        mutated = one.apply(SOURCE)
        assert mutated != SOURCE
        compile(mutated, "mutant", "exec")
        assert one.code in {"save(x)", "if x > 1 and not x:"}
        assert 'log.info("1 and 2", number=3)' in mutated


def test_each_accepted_fault_can_still_be_put_into_the_code() -> None:
    """A line about code that is gone would accept another fault one day."""
    accepted = [line for line in ACCEPTED.read_text().splitlines() if not line.startswith("#")]
    assert all(line.rpartition(" # ")[2] for line in accepted), "each has its reason"
    named = {line.partition(" ")[0] for line in accepted}
    there = {
        Mutant(path, mutation).accepted_as
        for path in named
        if (ROOT / path).exists()
        for mutation in mutations((ROOT / path).read_text())
    }
    gone = sorted({line.rpartition(" # ")[0] for line in accepted} - there)
    assert not gone, "remove these lines, or name what the code has instead:\n" + "\n".join(gone)
