"""Maintenance of sealed segments: archiving, scrubbing, ages, in the background."""
