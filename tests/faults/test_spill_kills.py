"""Two kills of a broker whose absent sessions wait for several rings; `./dev simulate spill` does 100."""

import tempfile
from pathlib import Path

from tests.campaigns.spill import SpillRounds

SEED = 3


def test_absent_sessions_get_everything_acknowledged_after_kill_9_of_a_broker_whose_rings_were_overwritten(
    runtime_directory: Path,
) -> None:
    with (
        tempfile.TemporaryDirectory() as disk,
        SpillRounds(runtime_directory / "run", Path(disk), SEED, times=4, in_flight=100) as rounds,
    ):
        rounds.round(kills=2)
        assert rounds.counts["kills with a backlog"] == 2
        assert all(rounds.counts[f"delivered to {it.client_id}"] > 2_000 for it in rounds.subscribers)
