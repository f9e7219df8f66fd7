"""Configuration: the schema of brim.toml, its rules, and the loader.  Reads files; never starts anything."""
