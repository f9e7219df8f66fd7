"""Log: connects the rings of the broker with the segment log, its maintenance and its readers."""
