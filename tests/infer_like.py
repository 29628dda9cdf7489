"""A small directory whose model has an `infer()` of its own, called as published ones are."""

import json
import shutil
from pathlib import Path

from both_engines import small_directory
from PIL import Image

from dsocr_analyze.architectures import DEFAULT

MODELING = '''
import os
import time

import torch
from PIL import Image
from torchvision import transforms
from transformers import DynamicCache

from . import modeling_deepseekocr as reference

IMAGE_TOKEN = 7


class DeepseekOCRForCausalLM(reference.DeepseekOCRForCausalLM):
    """One view of a page, a newline token behind each row and a separator, then the text."""

    def infer(self, tokenizer, prompt="", image_file="", output_path="", base_size=1024,
              image_size=640, crop_mode=True, save_results=False):
        torch.nn.Linear.reset_parameters = lambda self: None
        assert not crop_mode
        os.makedirs(f"{output_path}/images", exist_ok=True)
        time.sleep(PREPROCESS_SECONDS)
        side = image_size // 64
        normalize = transforms.Normalize(mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))
        to_tensor = transforms.Compose([transforms.ToTensor(), normalize])
        picture = Image.open(image_file).convert("RGB").resize((image_size, image_size))
        pixels = to_tensor(picture).to(torch.bfloat16)[None]
        before, after = (
            tokenizer.encode(part, add_special_tokens=False)
            for part in prompt.strip().split("<image>")
        )
        visual = [IMAGE_TOKEN] * (side * (side + 1) + 1)
        ids = torch.tensor([[0, *before, *visual, *after, *EXTRA]])
        mask = torch.zeros_like(ids, dtype=torch.bool)
        start = 1 + len(before)
        mask[0, start : start + len(visual)] = True
        with torch.autocast("cuda", dtype=torch.bfloat16), torch.no_grad():
            output = self.generate(
                ids.cuda(),
                images=[(torch.zeros(1, 3, base_size, base_size).cuda(), pixels.cuda())],
                images_seq_mask=mask.cuda(),
                images_spatial_crop=torch.tensor([[1, 1]]),
                eos_token_id=tokenizer.eos_token_id,
                max_new_tokens=5,
            )
        if save_results:
            with open(f"{output_path}/result.mmd", "w") as file:
                file.write("saved")
        time.sleep(AFTERWARDS_SECONDS)

    def generate(self, input_ids, eos_token_id=None, max_new_tokens=20, **images):
        assert torch.is_autocast_enabled(input_ids.device.type)
        print("not to be heard")
        cache, ids = DynamicCache(), input_ids
        for _ in range(max_new_tokens):
            length = ids.shape[1]
            new = ids if len(cache.key_cache) == 0 else ids[:, -1:]
            positions = torch.arange(length - new.shape[1], length)[None]
            output = self(
                input_ids=new, attention_mask=torch.ones_like(ids), position_ids=positions,
                past_key_values=cache, use_cache=True, **images,
            )
            cache = output.past_key_values
            chosen = output.logits[:, -1:].argmax(-1) if ENDS_WITH is None else ENDS_WITH(ids)
            ids = torch.cat([ids, chosen], dim=1)
            if chosen.item() == eos_token_id:
                break
        return ids

    def forward(self, input_ids=None, **inputs):
        time.sleep(STEP_SECONDS if input_ids.shape[1] == 1 else 0)
        return super().forward(input_ids=input_ids, **inputs)
'''

SETTINGS = {
    "PREPROCESS_SECONDS": "0",
    "AFTERWARDS_SECONDS": "0",
    "STEP_SECONDS": "0",
    "EXTRA": "[]",
    "ENDS_WITH": "None",
}


def write(path: Path, *, modeling: str = MODELING, **settings: str) -> Path:
    """Writes the directory; `settings` give other values for the constants of its code."""
    shutil.copytree(DEFAULT.reference, path, ignore=shutil.ignore_patterns("__pycache__"))
    constants = "".join(f"{name} = {value}\n" for name, value in (SETTINGS | settings).items())
    (path / "modeling_inferring.py").write_text(modeling + "\n\n" + constants, encoding="utf-8")
    config = small_directory().config
    config["auto_map"] = {
        **config["auto_map"],
        "AutoModel": "modeling_inferring.DeepseekOCRForCausalLM",
    }
    (path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return path


def picture(path: Path, size: tuple[int, int] = (300, 200)) -> Path:
    """Writes an image of which published code does not think that it is blank."""
    image = Image.linear_gradient("L").resize(size).point(lambda value: value // 2).convert("RGB")
    image.save(path)
    return path
