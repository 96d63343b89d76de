"""Imported once by the process from which ranks are forked: all that they would otherwise each import for seconds."""

from importlib import import_module

from muse_spark_ray.spec.train import train_config_class

for name in ("torch._dynamo", "torchmetrics", "optuna", "pytest", "muse_spark_ray.testing.strategy_contract"):
    import_module(name)
train_config_class()
