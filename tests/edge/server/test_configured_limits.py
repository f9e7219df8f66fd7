"""Settings that limit more than one part of the broker."""

from edge.config.loader import parse
from edge.server.configured_limits import broker_limits, engine_limits


def test_the_share_of_one_owner_holds_for_all_tables_and_for_wills() -> None:
    config = parse("[quota]\nshare_percent = 60\n")
    assert engine_limits(config).share_percent == 60
    assert broker_limits(config).wills.share_percent == 60
