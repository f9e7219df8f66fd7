"""A broker with mistakes, which the soak must find; `-m campaign` plants each of them without the others."""

import pytest

from tests.campaigns.soak import Terms, run_soak

TERMS = Terms(
    seconds=5,
    rate=1_000,
    guests=10,
    honest=50,
    tick_s=0.02,
    sample_s=0.25,
    settle_s=1.0,
    module="tests.support.impaired_broker",
)
FOUND = {
    "loss": "acknowledged did not reach the subscriber",
    "leak": "memory grows by",
    "pause": "a pause of",
}


def found_of(monkeypatch: pytest.MonkeyPatch, mistakes: str, leak_kib_per_s: int, options: Terms) -> set[str]:
    """The mistakes of which the soak reports the consequences."""
    monkeypatch.setenv("MISTAKES", mistakes)
    monkeypatch.setenv("LEAK_KIB_PER_S", str(leak_kib_per_s))
    _, wrong = run_soak(options, seed=1)
    print(wrong)  # shown when a test fails
    return {name for name, text in FOUND.items() if any(text in it for it in wrong)}


def test_a_lost_message_a_leak_and_a_pause_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    assert found_of(monkeypatch, "loss,leak,pause", 8_000, TERMS) == set(FOUND)


@pytest.mark.campaign
@pytest.mark.parametrize("mistake", sorted(FOUND))
def test_each_mistake_is_found_without_the_others(monkeypatch: pytest.MonkeyPatch, mistake: str) -> None:
    options = TERMS._replace(seconds=30, noise_kib=16 << 10)
    assert found_of(monkeypatch, mistake, 4_000, options) == {mistake}
