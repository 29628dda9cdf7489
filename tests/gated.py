"""Repositories with budgets in them, for the tests of `check`."""

import json
import os
import subprocess

from dsocr_analyze.architectures import ARCHITECTURES

PLAIN_GIT = {
    "GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@example.org",
    "GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a@example.org",
    "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null",
}  # fmt: skip


def git(folder, *arguments):
    environment = os.environ | PLAIN_GIT
    done = subprocess.run(
        ["git", *arguments], cwd=folder, env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def commit(folder):
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--allow-empty", "--message", "a state")


def repository(folder, budgets, **files):
    """A repository with budgets and other files, committed."""
    folder.mkdir(parents=True, exist_ok=True)
    git(folder, "init", "--quiet", "--template=", "--initial-branch", "main")
    (folder / "dsocr-budgets.toml").write_text(budgets)
    for name, text in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    commit(folder)


def with_values(config, **values):
    """A config with other values wherever these keys stand, sections included."""
    return {
        key: with_values(value, **values) if isinstance(value, dict) else values.get(key, value)
        for key, value in config.items()
    }


def small(name="deepseek-ocr", **values):
    """The published config of an architecture with few layers and experts, and other values."""
    few = {"num_hidden_layers": 2, "layers": 1, "n_routed_experts": 8, "global_attn_indexes": [0]}
    published = json.loads((ARCHITECTURES[name].reference / "config.json").read_text())
    return with_values(published, **few | values)
