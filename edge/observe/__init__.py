"""Observation: status report, metrics and the HTTP endpoint.  Changes nothing."""
