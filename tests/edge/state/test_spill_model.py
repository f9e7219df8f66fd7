"""The model of restarts, with a ring so small that what clients wait for is mostly in the spill file."""

from __future__ import annotations

from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import rule

from tests.edge.state.test_restart_model import ToTheEnd


class Spilled(ToTheEnd):
    capacity_bytes = 128 << 10

    def payload_of(self, number: int) -> bytes:
        """Of all lengths; some of those that have an extent of their own."""
        length = 20_000 if number % 13 == 5 else number * 7_919 % 3_000
        return b"%d " % number + bytes([number % 251]) * length

    @rule()
    def publisher_laps_the_ring(self) -> None:
        for _ in range(4):
            self.somebody_publishes(count=25, qos=1)

    def teardown(self) -> None:
        spilled = self.bench.stats.now()
        assert spilled["spilled_bytes"] <= spilled["spill_file_bytes"]
        super().teardown()


Spilled.TestCase.settings = settings(
    max_examples=30,
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=(Phase.explicit, Phase.reuse, Phase.generate),  # as for the model that this is one of
)
test_what_rings_have_overwritten_is_delivered_after_any_restart = Spilled.TestCase
