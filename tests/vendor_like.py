"""Small directories laid out as a vendor's checkout, for the tests of trust and of loading."""

import json
from pathlib import Path

CONFIG = {
    "auto_map": {
        "AutoConfig": "configuration_tiny.TinyConfig",
        "AutoModel": "modeling_tiny.TinyModel",
    },
    "hidden_size": 4,
    "layers": 2,
}

CONFIGURATION = """
from transformers import PretrainedConfig


class TinyConfig(PretrainedConfig):
    model_type = "tiny"

    def __init__(self, hidden_size=4, layers=1, **kwargs):
        self.hidden_size = hidden_size
        self.layers = layers
        super().__init__(**kwargs)
"""

MODELING = """
import torch
import torchvision
from torchvision import transforms
from torchvision.transforms.functional import InterpolationMode
from transformers import PreTrainedModel

from .configuration_tiny import TinyConfig
from .parts import Layer


class TinyModel(PreTrainedModel):
    config_class = TinyConfig

    def __init__(self, config):
        super().__init__(config)
        self.layers = torch.nn.ModuleList(Layer(config.hidden_size) for _ in range(config.layers))
        self.norm = torch.nn.LayerNorm(config.hidden_size)
        self.scale = torch.nn.Parameter(torch.empty(config.hidden_size))
        self.post_init()

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.norm(x) * self.scale
"""

PARTS = """
import torch


class Layer(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.linear = torch.nn.Linear(width, width)
        torch.nn.init.normal_(self.linear.weight)

    def forward(self, x):
        return torch.relu(self.linear(x))
"""

FILES = {
    "configuration_tiny.py": CONFIGURATION,
    "modeling_tiny.py": MODELING,
    "parts.py": PARTS,
}


def write(path: Path, config: object = CONFIG, **replaced: str) -> Path:
    """Writes a checkout; `replaced` gives other text for a file, by its stem.

    Of a config that is text, surrogates are written as the bytes that they escape.
    """
    path.mkdir(parents=True, exist_ok=True)
    text = config if isinstance(config, str) else json.dumps(config)
    (path / "config.json").write_text(text, encoding="utf-8", errors="surrogateescape")
    for name, source in FILES.items():
        (path / name).write_text(replaced.get(name.removesuffix(".py"), source), encoding="utf-8")
    return path
