"""A plain PyTorch training script, as many people have one: scikit-learn's digits, a small network, ten epochs."""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

EPOCHS = 10


def loaders() -> tuple[DataLoader, DataLoader]:  # type: ignore[type-arg]
    """Return training and validation loaders."""
    digits = load_digits()
    images = torch.tensor(digits.images / 16.0, dtype=torch.float32)[:, None]
    labels = torch.tensor(digits.target)
    train, validation = TensorDataset(images[:1437], labels[:1437]), TensorDataset(images[1437:], labels[1437:])
    return DataLoader(train, batch_size=32, shuffle=True), DataLoader(validation, batch_size=256)


def network() -> nn.Module:
    """Return the network to train."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))


def main() -> None:
    """Train, and print the best validation accuracy."""
    torch.manual_seed(0)
    train_loader, val_loader = loaders()
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    criterion = nn.CrossEntropyLoss()
    best = 0.0
    for epoch in range(EPOCHS):
        model.train()
        for images, labels in train_loader:
            optimizer.zero_grad()
            criterion(model(images), labels).backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            right = sum(int((model(images).argmax(1) == labels).sum()) for images, labels in val_loader)
        accuracy = 100.0 * right / len(val_loader.dataset)  # type: ignore[arg-type]
        best = max(best, accuracy)
        print(f"epoch {epoch + 1}: {accuracy:.2f} %")
    print(f"best: {best:.2f} %")


if __name__ == "__main__":
    main()
