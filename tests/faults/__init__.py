"""Real brokers, killed and starved: what they acknowledged is there afterwards."""
