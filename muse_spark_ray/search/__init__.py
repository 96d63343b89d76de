"""The search: which config next, on which gang, until which budget."""
