"""The training itself: loop, trainer, precision, schedules, evaluation, checkpoints. It runs without Ray."""
