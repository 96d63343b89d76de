"""Layer freezing: stop training the first layers before the last ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from muse_spark_ray.strategy import Card, Context, Decision, Stage, Step, Strategy, StrategyConfig, Trait, knob


def frozen_share(epoch: int, *, begin: int, over: int, share: float) -> float:
    """Return the share of the layers that are frozen after `epoch` epochs: linear
    from `begin` on, `share` when `over` epochs have passed.
    """
    if epoch < begin:
        return 0.0
    return share * min(1.0, (epoch - begin + 1) / over)


def layers_in_order(model: nn.Module) -> list[nn.Module]:
    """Return the modules that hold parameters themselves, first to last as the model declares them."""
    return [m for m in model.modules() if next(m.parameters(recurse=False), None) is not None]


class LayerFreezing(Strategy):
    """Stop training the first layers as the epochs go on; the backward pass then ends before them."""

    stage = Stage.UPDATE
    refuses = frozenset({Trait.CHANGING_SHAPES})
    card = Card(
        saves="backward passes and gradient exchange of the frozen layers",
        costs="nothing",
        pays="fine-tuning, deep networks whose first layers settle early",
        hurts="training from scratch with few epochs; layers frozen too early never recover",
        source="Brock et al. 2017, FreezeOut; https://docs.mosaicml.com/projects/composer/en/stable/method_cards/layer_freezing.html",
    )

    class Config(StrategyConfig):
        """Settings of layer freezing."""

        begin: int = knob(5, ge=1, search=(2, 20), doc="epoch after which the first layers are frozen")
        over: int = knob(5, ge=1, search=(1, 20), doc="epochs from then on until the full share is frozen")
        share: float = knob(0.5, gt=0, lt=1, search=(0.2, 0.8), doc="share of the layers that are frozen in the end")

    def __init__(self, config: Any, context: Context) -> None:
        super().__init__(config, context)
        self._layers: list[nn.Module] = []
        self._frozen = 0

    def prepare_model(self, model: nn.Module) -> nn.Module:
        self._layers = layers_in_order(model)
        return model

    def after_epoch(self, metrics: Mapping[str, Any], step: Step) -> Decision | None:
        c = self.config
        wanted = int(frozen_share(step.epoch, begin=c.begin, over=c.over, share=c.share) * len(self._layers))
        if wanted <= self._frozen:
            return None
        self._freeze(wanted)
        return Decision(
            reason=f"{wanted} of {len(self._layers)} layers are frozen",
            reshaped=True,
            metrics={"frozen_layers": wanted},
        )

    def _freeze(self, count: int) -> None:
        for layer in self._layers[:count]:
            for parameter in layer.parameters(recurse=False):
                parameter.requires_grad_(False)
                parameter.grad = None
        self._frozen = count

    def state_dict(self) -> dict[str, Any]:
        return {"frozen": self._frozen}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._freeze(int(state["frozen"]))
