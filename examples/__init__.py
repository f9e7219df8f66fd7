"""Programs that use Brim; each runs as it is."""
