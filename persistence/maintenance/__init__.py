"""Maintenance of sealed segments: retention, archiving, scrubbing, ages, in the background."""
