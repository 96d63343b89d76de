"""The strategies, one file each; the registry finds them by scanning this folder."""
