"""Recovery: the state that a start reads back.  Runs before the first client is accepted."""
