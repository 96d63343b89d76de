"""The same script with MuseSparkTrainer, in seven steps; what stays as it was is imported from `train.py`.

Guides that say `muse_spark` mean the package `muse_spark_ray`.
"""

from __future__ import annotations

import torch
from torch import nn
from train import EPOCHS, loaders, network

# 1. Import the trainer.
from muse_spark_ray import MuseSparkTrainer

# 2. Say which cost-saving strategies to use; every key can be left out.
CONFIG = {
    "use_amp": False,  # True on a GPU: bf16 where it has it, else fp16 with loss scaling
    "gradient_accumulation_steps": 2,
    "adaptive_sampling": {"strategy": "high_loss", "update_freq": 100},
    "dynamic_lr_scheduler": {"type": "cosine_with_warmup_restarts", "warmup_steps": 20, "cycle_length": 100},
    "checkpoint": {"save_dir": "checkpoints", "save_freq": "epoch", "keep_last": 3},
}


def main() -> None:
    """Train, and print the best validation accuracy and what it took."""
    torch.manual_seed(0)
    # 3. Keep data, model, optimizer and criterion as they are.
    train_loader, val_loader = loaders()
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    # 4. Hand them over.
    trainer = MuseSparkTrainer(model, optimizer, nn.CrossEntropyLoss(), train_loader, val_loader, CONFIG)
    # 5. Replace the loop by one call; run the script again and it goes on from its newest checkpoint.
    trainer.fit(epochs=EPOCHS)
    # 6. Take the best model, not the last one.
    best = trainer.get_best_model()
    # 7. Read the report; report.json lies beside the checkpoints.
    report = trainer.get_training_report()
    print(f"best: {report['best_val_acc']:.2f} % after {report['total_time']:.1f} s, {report['updates']} updates")
    print(f"parameters of the best model: {sum(p.numel() for p in best.parameters())}")


if __name__ == "__main__":
    main()
