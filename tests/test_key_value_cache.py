"""The cache that passes run over."""

import pytest
import torch
from transformers import DynamicCache

from dsocr_analyze.architectures import DEFAULT
from dsocr_analyze.architectures.architecture import CacheStep, GrowingCache
from dsocr_analyze.model import directory, generation


def states(tokens, *, heads=2, size=3):
    return torch.randn(1, heads, tokens, size), torch.randn(1, heads, tokens, size + 1)


def test_keys_and_values_are_kept_without_a_copy_and_later_ones_appended():
    cache = GrowingCache()
    first, second, more = states(5), states(5), states(2)
    held = cache.update(*first, 0)
    assert [*map(id, (*held, *cache[0]))] == [*map(id, (*first, *first))]
    cache.update(*second, 1)
    for found, *parts in zip(cache.update(*more, 0), first, more, strict=True):
        assert torch.equal(found, torch.cat(parts, dim=2))
    assert [cache.get_seq_length(layer) for layer in (0, 1, 2)] == [7, 5, 0]
    assert (cache.get_seq_length(), len(cache)) == (7, 2)
    with pytest.raises(IndexError, match="layer 3 came before layer 2"):
        cache.update(*states(1), 3)


@pytest.mark.parametrize("kind", [GrowingCache, DynamicCache])
def test_a_longer_cache_ends_in_zeros(kind):
    cache, layers = kind(), [states(4), states(4)]
    for layer_idx, pair in enumerate(layers):
        cache.update(*pair, layer_idx)
    longer = DEFAULT.decode_cache(cache, CacheStep(prompt_tokens=5, number=3))
    assert type(longer) is kind
    assert longer.get_seq_length() == 7
    assert cache.get_seq_length() == 4
    for (key, value, *_), pair in zip(longer, layers, strict=True):
        for held, given in zip((key, value), pair, strict=True):
            assert torch.equal(held[:, :, :4], given)
            assert not held[:, :, 4:].any()


def test_the_reference_has_a_cache_that_no_version_of_transformers_changes(tmp_path):
    reference = directory.ModelDirectory.read(DEFAULT.reference)
    assert type(generation.empty_cache(reference)) is GrowingCache
    assert type(generation.empty_cache(reference.with_config(reference.config))) is GrowingCache
    assert type(generation.empty_cache(directory.ModelDirectory(tmp_path, {}, {}))) is DynamicCache


def test_of_any_model_only_layers_of_keys_and_values_by_head_grow():
    """The first layer holds a state, the second nothing."""
    cache, state = DynamicCache(), torch.randn(1, 4, 3)
    cache.update(state, state, 0)
    cache.update(*states(4), 2)
    assert generation.lengths_of(cache) == {2: 4}
    generation.lengthen(cache, 3, {0: 0, 2: 1})
    assert [cache.get_seq_length(layer) for layer in (0, 2)] == [4, 7]
