"""Every registered strategy keeps the contract."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from muse_spark_ray.strategy import Trait, strategies
from muse_spark_ray.testing.strategy_contract import StrategyContract
from muse_spark_ray.testing.toys import toy_trainer


class TestStrategies(StrategyContract):
    names = tuple(strategies())
    # Images of 2 x 2 pixels and 8 updates an epoch: what acts later or on larger images by default must act here.
    settings: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "activation_checkpointing": {"blocks": "2 4"},
        "adaptive_sampling": {"update_freq": 2},
        "compile": {"backend": "eager"},
        "crop_flip": {"padding": 0},
        "cutout": {"size": 0.3},
        "distillation": {"teacher": "muse_spark_ray.testing.toys:toy_teacher", "weight": 0.2},
        "early_stopping": {"patience": 50},
        "layer_freezing": {"begin": 1, "over": 3},
        "magnitude_pruning": {"begin": 3, "end": 20, "every": 4},
        "plateau": {"patience": 1, "min_delta": 0.1, "action": "perturb", "noise": 0.01},
        "progressive_resizing": {"multiple": 2},
        "robust_loss": {"q": 0.3},
        "sequence_warmup": {"multiple": 1},
        "stochastic_depth": {"blocks": "1 2"},
        "structured_pruning": {"begin": 1, "plan": "iterative", "steps": 2, "ratio": 0.3},
        "swa": {"start_epoch": 1, "every": 2},
    }

    @pytest.mark.gpu
    @pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
    @pytest.mark.parametrize("amp", ["off", "bf16", "fp16"])
    def test_trains_and_resumes_on_a_gpu(self, name: str, amp: str, tmp_path: Path) -> None:
        if amp == "fp16" and Trait.LOSS_SCALING in strategies()[name].refuses:
            pytest.skip("refuses a loss scaler")
        config: dict[str, Any] = {"device": "cuda", "precision": {"amp": amp, "init_scale": 1024.0}}
        first = toy_trainer(folder=tmp_path, strategies=self.block(name), **config).fit(2)
        assert first["device"].startswith("cuda")
        report = toy_trainer(folder=tmp_path, strategies=self.block(name), **config).fit(4)
        assert (report["resumed_from"], report["epochs"], report["state"]) == (2, 4, "finished")
        assert all(math.isfinite(epoch["train_loss"]) for epoch in report["history"])
        assert report["peak_gpu_memory"] > 0
