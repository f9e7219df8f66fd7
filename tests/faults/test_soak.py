"""Mixed load for a while, at a pace that leaves the machine to others; `./dev simulate soak` takes ten."""

from pathlib import Path
from random import Random

from brim import Letter, publish
from tests.campaigns.soak import GROWTH_MAX_KIB_PER_MINUTE, Sample, Terms, growth_of, run_soak
from tests.support.brim_process import BrimProcess
from tests.support.children import ModuleChild
from tests.support.dense_number_set import DenseNumberSet
from tests.support.outside_client import payload_of
from tests.support.waiting import wait_until

TERMS = Terms(
    seconds=9, rate=2_000, guests=80, honest=50, tick_s=0.02, sample_s=0.9, judged=False, noise_kib=8 << 10
)


def test_mixed_load_loses_nothing_and_leaves_nothing_behind() -> None:
    counts, wrong = run_soak(TERMS, seed=1)
    assert not wrong
    for what in ("acknowledged", "consumed", "drained", "guests wills", "guests shared", "guests retained"):
        assert counts[what] > 0, counts


def test_a_member_of_the_group_notes_what_the_broker_accepted(
    runtime_directory: Path, tmp_path: Path
) -> None:
    ledger = tmp_path / "ledger"
    with BrimProcess(runtime_directory, tmp_path, "[consumers]\nenabled = true", bridge=False):
        letters = [(Letter("work/a"), payload_of(number)) for number in range(20)]
        assert publish(letters, runtime_dir=runtime_directory) == 20
        with ModuleChild("tests.support.soak_member", runtime_directory, ledger, "work/#", 1) as member:
            wait_until(lambda: ledger.exists() and ledger.read_text().count("\n") > 0)
            assert member.stop() == (0, "", "")
    noted = ledger.read_text().replace("\n", ",").split(",")[:-1]
    assert sorted(map(int, noted)) == list(range(len(noted)))


def test_the_ledger_sees_what_is_missing() -> None:
    sent, arrived = DenseNumberSet(), DenseNumberSet()
    for number in range(1_000):
        assert sent.add(number)
        assert number in (3, 500, 999) or arrived.add(number)
    assert arrived.lacks(sent) == [3, 500, 999]
    assert sent.lacks(arrived) == []
    assert not arrived.add(7)
    assert arrived.add(3)
    assert (arrived.next, len(arrived)) == (500, 998)


def test_growth_tells_a_slow_leak_from_noise() -> None:
    random = Random(1)

    def samples(leak_kib_per_minute: float) -> list[Sample]:
        noise = [random.gauss(0, 800) + (6_000 if random.random() < 0.1 else 0) for _ in range(200)]
        return [
            Sample(2.0 * i, int(50_000 + leak_kib_per_minute * i / 30 + noise[i]), 100) for i in range(200)
        ]

    assert growth_of(samples(0)) < GROWTH_MAX_KIB_PER_MINUTE / 4
    assert growth_of(samples(1024)) > GROWTH_MAX_KIB_PER_MINUTE * 1.5
    assert growth_of([]) == 0
