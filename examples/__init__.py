"""Programs that use Brim, each to be run as it stands."""
