"""Any model of transformers: traced as its stages file says, and counted as torch counts it."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from any_models import (
    FORMULAS,
    IS_5,
    LLAMA,
    MODELS,
    PRESENT,
    QWEN2_MOE,
    QWEN2_VL,
    TEXT_STAGES,
    TOKENS,
    Small,
    session_of,
)
from torch.utils.flop_counter import FlopCounterMode

from dsocr_analyze.architectures import described_architecture
from dsocr_analyze.architectures.stages import owner_among
from dsocr_analyze.errors import ConfigError, ModelCodeError, WorkloadError
from dsocr_analyze.model.directory import ModelDirectory
from dsocr_analyze.model.forward import running
from dsocr_analyze.session import DeepSeekOCRSession
from dsocr_analyze.trace.passes import trace_passes
from dsocr_analyze.trace.summary import growing_work, linear_stretches

META = torch.device("meta")


@pytest.fixture(scope="module", params=MODELS)
def traced(request, tmp_path_factory):
    """A model, its session, and its report for 4 new tokens."""
    small = MODELS[request.param]
    if not small.is_there:
        pytest.skip(f"the installed transformers has no {request.param}")
    session = session_of(small, tmp_path_factory.mktemp(request.param))
    return small, session, session.analyze(max_new_tokens=4)


class TestWitness:
    def test_every_operator_is_known_and_nothing_is_in_doubt(self, traced):
        _, _, report = traced
        assert report.operator_ledger.unknown == {}
        assert report.warnings == ()

    def test_stages_add_up_and_own_every_parameter(self, traced):
        _, session, report = traced
        *rest, last = report.stages.values()
        in_pass = [*rest] if report.total.decode_step else [*rest, last]
        assert sum(stage.flops for stage in in_pass) == report.total.flops
        owned = sum(stage.params for stage in report.stages.values())
        assert owned + report.unassigned.params == report.total.params
        assert report.total.params == sum(p.numel() for p in session.model.parameters())

    def test_the_report_says_that_it_stands_alone(self, traced):
        _, _, report = traced
        assert report.agreement is None
        assert any("has no closed forms" in note for note in report.notes)
        assert report.metadata.attention == "eager"
        assert report.workload.page is report.workload.visual_tokens is None

    def test_stages_work_is_that_of_their_modules(self, traced):
        """Of FlopCounterMode, whose own hooks know whose module runs."""
        small, session, report = traced
        with running(META):
            given = {
                name: value.bfloat16() if value.is_floating_point() else value
                for name, value in small.inputs(META).items()
            }
            with FlopCounterMode(display=False, custom_mapping=FORMULAS) as counter:
                session.model(**given, **({"use_cache": True} if small.decodes else {}))
        if not small.decodes:  # for others, generate() is the witness
            assert report.total.matrix_flops == counter.get_total_flops()
        by_module = {name: sum(found.values()) for name, found in counter.get_flop_counts().items()}
        root = type(session.model).__name__
        before: dict[str, int] = {}
        for stage in session.architecture.stages:
            if stage.role == "vision":
                own = {path: by_module.get(f"{root}.{path}", 0) for path in stage.prefixes}
                inside = sum(flops for path, flops in before.items() if owner_among((stage,), path))
                assert report.stages[stage.name].matrix_flops == sum(own.values()) - inside > 0
                before |= own


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("name", "between"),
    [("clip", 2 * 24 * (2 * 2 - 2 * 1)),  # [B, P] x [P, B] grows with the square
     ("clip_encoder", 0)],
)  # fmt: skip
def test_a_batch_costs_as_many_times_its_matrix_work(tmp_path, name, between):
    """But in a model that compares every image with every text."""
    session = session_of(PRESENT[name], tmp_path)
    one, two = (session.analyze(batch_size=batch, max_new_tokens=2) for batch in (1, 2))
    assert two.total.matrix_flops == 2 * one.total.matrix_flops + between


class TestByHand:
    def test_a_dense_decoder(self, tmp_path):
        report = session_of(LLAMA, tmp_path).analyze(max_new_tokens=1)
        T, d, kv, inner, layers, vocabulary = TOKENS, 64, 32, 96, 2, 128
        layer = T * (2 * d * d + 2 * d * kv + 3 * d * inner) + 2 * T * T * d
        angle = 0 if IS_5 else 8  # half a head's, which 4.46 makes as an outer product
        assert report.total.macs == layers * layer + T * angle + d * vocabulary
        step = 2 * d * d + 2 * d * kv + 3 * d * inner + 2 * (T + 1) * d
        assert report.total.decode_step.macs == layers * step + d * vocabulary + angle
        assert report.total.params == (
            2 * vocabulary * d + layers * (2 * d * d + 2 * d * kv + 3 * d * inner + 2 * d) + d
        )
        assert report.memory.kv_cache_bytes == 2 * layers * kv * T * 2
        assert report.memory.inputs_bytes == 8 * T * 2


class TestSteps:
    """Of a model of which nothing is declared, decode steps show themselves where they change."""

    @pytest.mark.exhaustive
    @pytest.mark.parametrize("name", PRESENT)
    def test_the_batch_is_every_step_run_one_after_the_other(self, tmp_path, name):
        small = PRESENT[name]
        if not small.decodes:
            pytest.skip("it does not decode")
        session = session_of(small, tmp_path)
        for new_tokens in (2, 3, 17):
            workload = session.plan(max_new_tokens=new_tokens)
            figures, _ = session.figures(workload)
            steps = range(new_tokens - 1)
            run = trace_passes(session.loaded, workload, session.architecture, step_numbers=steps)
            pattern = session.architecture.routed_expert
            each = [growing_work(step, pattern) for step in run.decode_steps]
            # What the routed experts of a step do is the same in each: the even split.
            whole = [growing_work(step, None) for step in run.decode_steps]
            assert {one.minus(other) for one, other in zip(whole, each, strict=True)} == {
                whole[0].minus(each[0])
            }
            expected = figures.prefill_pass
            for work in whole:
                expected = expected.plus(work)
            assert figures.batch == expected
            assert figures.memory.kv_cache_bytes == run.step_cache_bytes[-1]

    def test_a_cut_is_found_wherever_it_lies(self):
        from dsocr_analyze.kernels import Work

        for cut in range(30):
            for steps in (range(1), range(2), range(30), range(7, 19)):

                def cost(number, cut=cut):
                    return Work(macs=3 * min(number, cut) + (5 if number > cut else 0))

                stretches = linear_stretches(steps, cost)
                assert [number for part in stretches for number in part] == list(steps)
                for part in stretches:
                    growth = cost(part[min(1, len(part) - 1)]).macs - cost(part[0]).macs
                    for index, number in enumerate(part):
                        assert cost(number).macs == cost(part[0]).macs + index * growth

    @pytest.mark.exhaustive
    def test_few_steps_run_where_all_are_alike(self, tmp_path):
        session = session_of(LLAMA, tmp_path)
        traces = session.trace(session.plan(max_new_tokens=1000))
        assert traces.step_numbers == (0, 1, 499, 998)

    @pytest.mark.skipif(not IS_5, reason="transformers 4's DynamicCache keeps every token")
    def test_a_sliding_window_bounds_the_cache(self, tmp_path):
        session = session_of(PRESENT["mistral"], tmp_path)
        report = session.analyze(max_new_tokens=50)
        window, layers, kv = TOKENS + 5, 2, 32
        assert report.memory.kv_cache_bytes == 2 * layers * kv * (window - 1) * 2


class TestInputs:
    def inputs(self, tmp_path, small: Small, device="meta", **workload):
        stages, _ = small.write(tmp_path)
        architecture = described_architecture(stages)
        plan = architecture.plan(**workload)
        return architecture.prefill_inputs(torch.device(device), torch.bfloat16, plan)

    def test_a_prompt_is_what_a_processor_returns(self, tmp_path):
        given = self.inputs(tmp_path, LLAMA, "cpu", batch_size=2, seq_len=5)
        assert {name: value.tolist() for name, value in given.items()} == {
            "input_ids": [[0] * 5] * 2,
            "attention_mask": [[1] * 5] * 2,
        }

    def test_tensors_are_as_described(self, tmp_path):
        stages = (
            TEXT_STAGES
            + """
[prompt]
tokens = 6
fill = 7
placed = [{ value = 9, start = 1, count = 2 }, { value = 3, start = 5 }]
without = ["attention_mask"]

[inputs]
flag = false
number = 3
name = "a"
list = [{ shape = [1], dtype = "bool" }, 2]

[inputs.filled]
shape = ["batch", 2, "tokens"]

[inputs.placed]
shape = ["batch", "keys"]
dtype = "int32"
fill = 0
placed = [{ value = 5, start = 2, count = 3 }]

[inputs.values]
values = [[1, 2], [3, 4]]
repeat = "batch"

[inputs.floats]
values = [0.5]
dtype = "float32"
"""
        )
        first = self.inputs(tmp_path, replace(LLAMA, stages=stages), "cpu", batch_size=2)
        assert first["input_ids"].tolist() == [[7, 9, 9, 7, 7, 3]] * 2
        assert "attention_mask" not in first
        assert (first["flag"], first["number"], first["name"]) == (False, 3, "a")
        assert first["list"][0].dtype == torch.bool
        assert first["list"][1] == 2
        assert first["filled"].shape == (2, 2, 6)
        assert first["filled"].dtype == torch.bfloat16
        assert first["filled"].unique().tolist() == [1.0]
        assert first["placed"].tolist() == [[0, 0, 5, 5, 5, 0]] * 2
        assert first["placed"].dtype == torch.int32
        assert first["values"].tolist() == [[1, 2], [3, 4]] * 2
        assert first["values"].dtype == torch.int64
        assert first["floats"].dtype == torch.float32

    def test_values_are_known_on_meta(self, tmp_path):
        with running(META):
            first = self.inputs(tmp_path, QWEN2_VL, batch_size=2)
            image = first["input_ids"] == 120
            assert image.sum().item() == 2 * 4
            assert first["image_grid_thw"].tolist() == [[1, 4, 4]] * 2

    def test_a_placed_token_beyond_the_prompt_is_refused(self, tmp_path):
        with pytest.raises(WorkloadError, match="give at least 8"):
            self.inputs(tmp_path, QWEN2_VL, seq_len=7)

    @pytest.mark.parametrize(
        ("asked", "named"),
        [({"page": (10, 10)}, "page"), ({"base_size": 640}, "base_size"),
         ({"seq_len": 0}, "seq_len"), ({"batch_size": 0}, "batch_size"),
         ({"batch_size": 1 << 20}, "at most 699050"),
         ({"max_new_tokens": 0}, "max_new_tokens"), ({"max_new_tokens": 1.5}, "max_new_tokens")],
    )  # fmt: skip
    def test_what_it_cannot_be_asked_is_refused(self, tmp_path, asked, named):
        stages, _ = LLAMA.write(tmp_path)
        with pytest.raises(WorkloadError, match=named):
            described_architecture(stages).plan(**asked)


class TestStagesFile:
    def refused(self, tmp_path, text: str) -> str:
        file = tmp_path / "stages.toml"
        file.write_text(text)
        with pytest.raises(ConfigError) as refusal:
            described_architecture(file)
        message = str(refusal.value)
        assert message.startswith(str(file))
        assert "\n" not in message
        return message.removeprefix(f"{file}: ")

    @pytest.mark.parametrize("order", ["inner first", "outer first"])
    def test_the_longest_matching_path_wins_in_any_order(self, order, tmp_path):
        """Of Llama: 2 x 64 heads' numbers in q, 2 x 32 in k and v, for 64 of the model's."""
        inner = '[[stages]]\nname = "inner"\nprefixes = ["model.layers.0.self_attn"]\n'
        outer = '[[stages]]\nname = "outer"\nprefixes = ["model.layers.0"]\n'
        parts = inner + outer if order == "inner first" else outer + inner
        session = session_of(Small(LLAMA.config, parts + LLAMA.stages), tmp_path)
        attention, layer = 2 * 64 * 64 + 2 * 32 * 64, 3 * 96 * 64 + 2 * 64
        owned = {name: sum(found.values()) for name, found in session.own_params.items()}
        assert (owned["inner"], owned["outer"]) == (attention, layer)
        report = session.analyze(max_new_tokens=2)
        tokens = 24
        assert report.stages["outer"].matrix_flops == 2 * 3 * 96 * 64 * tokens
        assert report.stages["inner"].matrix_flops > 2 * attention * tokens
        assert session.architecture.owner_of("model.layers.0.self_attn.q_proj") == "inner"
        assert session.architecture.owner_of("model.layers.0x") == "prefill"

    GOOD = 'name = "x"\n' + LLAMA.stages

    @pytest.mark.parametrize(
        ("old", "new", "message"),
        [
            ('name = "x"', 'title = "x"', "'name' is missing; give a text"),
            ('name = "x"', 'name = 3', "'name' is 3; give a text"),
            ('name = "x"', 'name = "x"\nstage = 1',
             "'stage' is unknown; the known keys are stages"),
            ('prefixes = ["model"]', 'prefix = ["model"]',
             "'stages[0].prefix' is unknown; the known keys are"),
            ('prefixes = ["model"]', 'prefixes = "model"', "'stages[0].prefixes' is 'model'; give"),
            ('prefixes = ["lm_head"]', 'prefixes = ["model"]',
             "'stages[1].prefixes' has 'model', which stage 'prefill' already owns; give it"),
            ('role = "decode"', 'role = "step"',
             "'stages[1].role' is 'step'; give one of prefill, decode"),
            ('role = "decode"', "", "the roles of 'stages' are prefill, none; give one stage"),
            ('role = "prefill"', "", "the roles of 'stages' are none, decode; give one stage"),
            ('name = "decode"', 'name = "prefill"', "'stages[1].name' is 'prefill'; give another"),
            ("tokens = 24", "tokens = 0", "'prompt.tokens' is 0; give a whole number from 1"),
            ("tokens = 24", "tokens = 2147483648",
             "'prompt.tokens' is 2147483648; give a whole number from 1 to 1,048,576"),
            ("tokens = 24", "tokens = 24\n[inputs.x]\nshape = [2147483648]\n"
             "placed = [{ value = 1, start = 0 }]",
             "'inputs.x.shape' is [2147483648]; give beside 'placed' a list whose last size is"),
            ("tokens = 24", "tokens = 24\n[inputs.x]\nshape = []\n"
             "placed = [{ value = 1, start = 0 }]",
             "'inputs.x.shape' is []; give beside 'placed' a list whose last size is"),
            ("tokens = 24", "tokens = true", "'prompt.tokens' is true; give a whole number"),
            ("[prompt]\ntokens = 24", "", "'prompt' is missing; a model that decodes needs one"),
            ("tokens = 24", "tokens = 24\nplaced = [{ value = 1 }]",
             "'prompt.placed[0].start' is missing; give a whole number from 0"),
            ("tokens = 24", "tokens = 24\n[inputs.x]\nshape = [0]",
             "'inputs.x.shape' is [0]; give a list, each item a whole number from 1, \"batch\""),
            ("tokens = 24", "tokens = 24\n[inputs.x]\ndtype = 'half'\nshape = [1]",
             "'inputs.x.dtype' is 'half'; give one of model, float32"),
            ("tokens = 24", "tokens = 24\n[inputs.x]\nfill = 1",
             "'inputs.x.shape' and 'values' are both missing; give one of them"),
            ("tokens = 24", "tokens = 24\n[inputs.x]\nvalues = [[1], [1, 2]]",
             "'inputs.x.values' is [[1], [1, 2]]; give numbers, in lists of equal lengths"),
            ("tokens = 24", "tokens = 24\n[inputs.x]\nvalues = [1]\nfill = 2",
             "'inputs.x.fill' is 2; give no such key together with 'values'"),
            ("tokens = 24", "tokens = 24\n[inputs]\nx = 1979-05-27",
             "'inputs.x' is datetime.date(1979, 5, 27); give a table that describes a tensor"),
            ('name = "x"', 'name = "x"\nattention = "flash"',
             "'attention' is 'flash'; give one of eager, sdpa"),
            ('name = "x"', 'name = "x"\nrouted_expert = "model.experts"',
             "'routed_expert' is 'model.experts'; give a path that ends in .*"),
        ],
    )  # fmt: skip
    def test_a_mistake_is_named_with_what_is_right(self, tmp_path, old, new, message):
        assert old in self.GOOD
        assert self.refused(tmp_path, self.GOOD.replace(old, new, 1)).startswith(message)

    def test_a_decode_table_is_said_to_be_of_no_use(self, tmp_path):
        small = replace(LLAMA, stages=LLAMA.stages + "\n[decode]\ncache_given = false\n")
        [_, note] = session_of(small, tmp_path).analyze(max_new_tokens=1).notes[:2]
        assert note.startswith("'decode' in ")
        assert "is not used" in note

    def test_a_model_called_with_nothing_is_refused(self, tmp_path):
        text = 'name = "x"\n[[stages]]\nname = "all"\nrole = "prefill"\n'
        assert self.refused(tmp_path, text).startswith("the model has no inputs")

    def test_what_is_no_toml_is_refused(self, tmp_path):
        file = tmp_path / "stages.toml"
        file.write_text("= 3")
        with pytest.raises(ConfigError, match="is not TOML"):
            described_architecture(file)
        with pytest.raises(ConfigError, match="cannot read"):
            described_architecture(tmp_path / "none.toml")

    def test_the_expert_of_a_path_is_its_last_star(self, tmp_path):
        file = tmp_path / "stages.toml"
        file.write_text('routed_expert = "model.layers.*.mlp.experts.*"\n' + self.GOOD)
        pattern = described_architecture(file).routed_expert
        match = pattern.fullmatch("model.layers.3.mlp.experts.12.down_proj")
        assert match["experts"] == "model.layers.3.mlp.experts"
        assert match["index"] == "12"
        assert pattern.fullmatch("model.layers.3.mlp.experts") is None
        assert pattern.fullmatch("model.layers.3.mlp.shared") is None


class TestModel:
    def directory(self, tmp_path, small: Small) -> ModelDirectory:
        stages, config = small.write(tmp_path)
        return ModelDirectory.of_config(config, described_architecture(stages))

    def refused(self, tmp_path, small: Small) -> str:
        with pytest.raises(ConfigError) as refusal:
            DeepSeekOCRSession.from_directory(self.directory(tmp_path, small))
        return str(refusal.value)

    def test_a_type_that_transformers_does_not_know(self, tmp_path):
        small = replace(LLAMA, config={**LLAMA.config, "model_type": "llama99"})
        assert "has model_type 'llama99'" in self.refused(tmp_path, small)

    def test_a_class_that_transformers_does_not_have(self, tmp_path):
        small = replace(LLAMA, config={**LLAMA.config, "architectures": ["LlamaConfig"]})
        assert "has no model class 'LlamaConfig'" in self.refused(tmp_path, small)

    def test_the_width_of_experts_is_not_their_number(self, tmp_path):
        small = replace(LLAMA, config={**LLAMA.config, "shared_experts_intermediate_size": 2048})
        assert DeepSeekOCRSession.from_directory(self.directory(tmp_path, small)) is not None

    def test_no_class_at_all(self, tmp_path):
        small = replace(LLAMA, config={**LLAMA.config, "architectures": []})
        assert "give 'class' in the stages file" in self.refused(tmp_path, small)

    @pytest.mark.exhaustive
    def test_the_stages_file_may_name_the_class(self, tmp_path):
        stages = 'class = "LlamaForCausalLM"\n' + LLAMA.stages
        config = {key: LLAMA.config[key] for key in LLAMA.config if key != "architectures"}
        session = session_of(replace(LLAMA, config=config, stages=stages), tmp_path)
        assert session.analyze().metadata.model.class_name == "LlamaForCausalLM"

    def test_a_prefix_of_nothing(self, tmp_path):
        small = replace(LLAMA, stages=LLAMA.stages.replace('"model"', '"model.layer"'))
        message = self.refused(tmp_path, small)
        assert "stage 'prefill' of 'small' has the prefix 'model.layer'" in message
        assert "model.layers" in message

    @pytest.mark.exhaustive
    def test_a_directory_is_built_like_its_config(self, tmp_path):
        stages, config = LLAMA.write(tmp_path)
        folder = tmp_path / "model"
        folder.mkdir()
        (folder / "config.json").write_text(config.read_text())
        (folder / "unused.py").write_text("raise SystemExit")  # of which nothing is executed
        session = DeepSeekOCRSession.from_local(folder, stages=stages)
        alone = session_of(LLAMA, tmp_path).analyze()
        assert session.analyze().total == alone.total
        assert session.model_source.source == "config"

    @pytest.mark.skipif(not IS_5, reason="transformers 4 refuses this key in its own file")
    def test_the_directory_says_which_cache_is_made(self, tmp_path):
        """A static one has room for all new tokens from the beginning."""
        stages, config = LLAMA.write(tmp_path)
        config.rename(tmp_path / "config.json")
        (tmp_path / "generation_config.json").write_text('{"cache_implementation": "static"}')
        session = DeepSeekOCRSession.from_local(tmp_path, stages=stages)
        traces = session.trace(session.plan(max_new_tokens=10))
        room = 2 * 2 * 32 * 2 * (TOKENS + 9)  # keys and values of two layers
        assert {traces.kv_cache_bytes, *traces.step_cache_bytes} == {room}

    def test_a_generation_config_that_is_none_is_refused(self, tmp_path):
        stages, config = LLAMA.write(tmp_path)
        (tmp_path / "generation_config.json").write_text("[]")
        config.rename(tmp_path / "config.json")
        with pytest.raises(ConfigError, match=r"generation_config\.json"):
            DeepSeekOCRSession.from_local(tmp_path, stages=stages)

    @pytest.mark.exhaustive
    def test_tied_weights_are_counted_once(self, tmp_path):
        tied = replace(LLAMA, config={**LLAMA.config, "tie_word_embeddings": True})
        own, shared = (session_of(each, tmp_path).analyze().total for each in (LLAMA, tied))
        assert own.params - shared.params == 128 * 64
        assert own.matrix_flops == shared.matrix_flops

    @pytest.mark.exhaustive
    def test_sdpa_does_the_same_matrix_work(self, tmp_path):
        sdpa = replace(LLAMA, stages='attention = "sdpa"\n' + LLAMA.stages)
        eager, fused = (session_of(each, tmp_path).analyze() for each in (LLAMA, sdpa))
        assert fused.metadata.attention == "sdpa"
        assert "scaled_dot_product_attention" in fused.operator_ledger.counted
        assert fused.total.matrix_flops == eager.total.matrix_flops
        assert fused.total.bytes_moved < eager.total.bytes_moved

    @pytest.mark.exhaustive
    @pytest.mark.parametrize("name", ["llama", "qwen2_moe", "qwen2_vl", "clip"])
    def test_a_cpu_counts_the_matrix_work_of_meta(self, tmp_path, name):
        """There the values are there: nothing has to be known beforehand."""
        small = MODELS[name]
        meta, cpu = (
            session_of(small, tmp_path, device=device, dtype="float32").analyze(max_new_tokens=2)
            for device in ("meta", "cpu")
        )
        assert cpu.total.matrix_flops == meta.total.matrix_flops
        assert cpu.total.batch.matrix_flops == meta.total.batch.matrix_flops
        assert cpu.operator_ledger.unknown == {}

    @pytest.mark.parametrize(
        ("attention", "arguments", "message"),
        [
            ('attention = "sdpa"\n', {}, 'has no sdpa; give attention = "eager"'),
            ("", {"flash_attention": True}, "no flash_attention_2; give flash_attention=False"),
        ],
    )
    def test_attention_that_a_class_lacks_is_refused(self, tmp_path, attention, arguments, message):
        """Asked for it, transformers would raise, or its code run another one in silence."""
        mamba = {
            "model_type": "mamba",
            "architectures": ["MambaForCausalLM"],
            "num_hidden_layers": 1,
        }
        stages = LLAMA.stages.replace('"model"', '"backbone"')
        with pytest.raises(ConfigError, match=f"MambaForCausalLM of .* {message}"):
            session_of(
                replace(LLAMA, config=mamba, stages=attention + stages), tmp_path, **arguments
            )

    def test_flash_attention_of_transformers_needs_its_package(self, tmp_path):
        with pytest.raises(ConfigError, match="needs the package flash-attn"):
            session_of(LLAMA, tmp_path, flash_attention=True)

    def test_an_argument_that_forward_would_swallow_is_refused(self, tmp_path):
        small = MODELS["clip_encoder"]
        stages = small.stages + "\n[inputs.pixel_value]\nshape = [1]\n"
        with pytest.raises(ConfigError, match=r"takes no 'pixel_value'; .* pixel_values"):
            session_of(replace(small, stages=stages), tmp_path).analyze()

    def test_a_quantized_config_is_counted_without_it_and_that_is_said(self, tmp_path):
        quantized = {**LLAMA.config, "quantization_config": {"quant_method": "fp8"}}
        report = session_of(replace(LLAMA, config=quantized), tmp_path).analyze(max_new_tokens=1)
        [warning] = report.warnings
        assert "'quantization_config' in config.json has no effect" in warning

    def test_what_generate_cannot_run_is_refused(self, tmp_path):
        config = {**LLAMA.config, "architectures": ["LlamaModel"]}
        stages = LLAMA.stages.replace('"model"', '"layers"').replace('"lm_head"', '"norm"')
        session = session_of(replace(LLAMA, config=config, stages=stages), tmp_path)
        with pytest.raises(ConfigError, match=r"cannot run LlamaModel; .* leave out the stage"):
            session.analyze(max_new_tokens=1)

    def test_what_the_model_raises_is_the_models(self, tmp_path):
        small = replace(
            LLAMA, stages=LLAMA.stages + "\n[inputs.pixel_values]\nshape = [1, 3, 64]\n"
        )
        with pytest.raises(ModelCodeError, match=r"not used by the model: \['pixel_values'\]"):
            session_of(small, tmp_path).analyze()


@pytest.mark.exhaustive
def test_routed_experts_may_run_unevenly(tmp_path):
    """With drawn weights the split is even; the note says so only of a model that routes."""
    assert any(
        "routing is uniform" in note for note in session_of(QWEN2_MOE, tmp_path).analyze().notes
    )
    assert not any("routing" in note for note in session_of(LLAMA, tmp_path).analyze().notes)


def test_a_report_is_read_again(tmp_path):
    from dsocr_analyze.report.opening import dump_json
    from dsocr_analyze.report.reading import load_report

    for name in ("llama", "clip"):
        report = session_of(MODELS[name], tmp_path).analyze(max_new_tokens=2)
        file = tmp_path / "report.json"
        file.write_text(dump_json(report))
        assert load_report(file) == report
        assert json.loads(file.read_text())["workload"]["page"] is None
