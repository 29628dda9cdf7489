"""`dsocr-analyze time`, and predicted seconds in reports and comparisons."""

import json
import subprocess
import sys

import jsonschema
import pytest

from dsocr_analyze.cli import main
from dsocr_analyze.cli.documents import schemas


@pytest.fixture(autouse=True)
def _somewhere_else(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


def timed(capsys, *arguments):
    assert main(["time", *arguments, "--format", "json"]) == 0
    return json.loads(capsys.readouterr().out)


def refused(capsys, *arguments):
    assert main(["time", *arguments]) == 2
    return capsys.readouterr().err


class TestJson:
    @pytest.mark.exhaustive
    def test_it_opens_with_model_and_workload_and_has_an_entry_per_gpu_and_runtime(self, capsys):
        document = timed(capsys, "h100", "L40S", "--runtime", "eager,serving", "--concurrency", "2")
        assert list(document) == [
            "schema_version",
            "command",
            "options",
            "model",
            "workload",
            "time",
        ]
        assert document["workload"]["seq_len"] == 913
        found = [(entry["gpu"], entry["runtime"]) for entry in document["time"]]
        assert found == [
            ("h100-sxm", "eager"), ("h100-sxm", "serving"), ("l40s", "eager"), ("l40s", "serving"),
        ]  # fmt: skip

    def test_an_entry_has_the_keys_that_other_programs_rely_on(self, capsys):
        [entry] = timed(capsys, "a100", "--concurrency", "1,3")["time"]
        assert list(entry["stages"]) == ["sam", "clip", "projector", "prefill", "decode"]
        for stage in entry["stages"].values():
            assert {"seconds", "low", "high", "bound"} <= stage.keys()
            assert 0 < stage["low"] < stage["seconds"] < stage["high"]
            assert stage["bound"] in ("launches", "memory", "compute", "host")
        assert {"ttft_seconds", "tpot_seconds", "page_seconds", "profile"} <= entry.keys()
        assert entry["profile"]["extrapolated"] == ["encoder_attention.bfloat16"]
        for load, concurrency in zip(entry["throughput"], (1, 3), strict=True):
            assert load["concurrency"] == concurrency
            assert load["fits"]
            assert load["pages_per_second"] == pytest.approx(concurrency / load["page_seconds"])
            assert load["tokens_per_second"] == pytest.approx(1024 * load["pages_per_second"])
            decode = load["page_seconds"] - load["ttft_seconds"]
            assert load["tpot_seconds"] == pytest.approx(decode / 1023)

    def test_stages_add_up_to_the_first_token_and_steps_to_the_page(self, capsys):
        [entry] = timed(capsys, "h200", "--preprocess-ms", "50", "--max-new-tokens", "11")["time"]
        *prefill, _ = (stage["seconds"] for stage in entry["stages"].values())
        assert entry["ttft_seconds"] == pytest.approx(0.05 + sum(prefill))
        steps = 10 * entry["tpot_seconds"]
        assert entry["page_seconds"] == pytest.approx(entry["ttft_seconds"] + steps)

    def test_a_page_of_one_token_has_no_time_per_token(self, capsys):
        [entry] = timed(capsys, "h100", "--max-new-tokens", "1", "--concurrency", "4")["time"]
        assert entry["tpot_seconds"] is None
        assert entry["throughput"][0]["tpot_seconds"] is None

    def test_money_is_the_price_of_the_hours_of_a_thousand_pages(self, capsys):
        [entry] = timed(capsys, "h100", "--price", "3.6", "--concurrency", "8")["time"]
        [load] = entry["throughput"]
        assert load["cost_per_thousand_pages"] == pytest.approx(1 / load["pages_per_second"])
        assert load["cost_band"]["low"] < load["cost_per_thousand_pages"]

    def test_preprocessing_bounds_the_throughput_where_it_is_slow(self, capsys):
        arguments = ("b200", "--preprocess-ms", "1000", "--concurrency", "64")
        [one] = timed(capsys, *arguments)["time"][0]["throughput"]
        [four] = timed(capsys, *arguments, "--workers", "4")["time"][0]["throughput"]
        assert one["bound"] == "host"
        assert one["pages_per_second"] == pytest.approx(1, rel=0.05)
        assert four["pages_per_second"] == pytest.approx(4, rel=0.1)

    def test_offline_the_cpu_and_the_gpu_take_turns(self, capsys):
        arguments = ("h100", "--concurrency", "32")
        [alone] = timed(capsys, *arguments, "--preprocess-ms", "0")["time"][0]["throughput"]
        offline = (*arguments, "--preprocess-ms", "250", "--workers", "2", "--offline")
        [turns] = timed(capsys, *offline)["time"][0]["throughput"]
        seconds = 1 / alone["pages_per_second"] + 0.125
        assert turns["pages_per_second"] == pytest.approx(1 / seconds)

    def test_lengths_of_real_outputs_replace_the_one_length(self, capsys, tmp_path):
        file = tmp_path / "lengths.csv"
        file.write_text("new_tokens\n" + "100\n" * 9 + "2000\n")
        [entry] = timed(capsys, "h100", "--new-tokens-from", str(file))["time"]
        assert entry["assumptions"]["new_tokens_mean"] == pytest.approx(290)
        assert entry["assumptions"]["new_tokens_longest"] == 2000

    def test_a_mean_and_a_share_at_the_limit_make_a_distribution(self, capsys):
        [entry] = timed(
            capsys, "h100", "--mean-new-tokens", "500", "--share-at-limit", "0.1",
            "--max-new-tokens", "4000",
        )["time"]  # fmt: skip
        assert entry["assumptions"]["new_tokens_mean"] == pytest.approx(0.9 * 500 + 0.1 * 4000)

    @pytest.mark.exhaustive
    def test_an_eager_batch_waits_for_its_longest_page(self, capsys):
        arguments = ("h100", "--runtime", "eager", "--concurrency", "8", "--max-new-tokens", "900")
        alike = timed(capsys, *arguments, "--mean-new-tokens", "500")["time"][0]["throughput"][0]
        mixed = timed(
            capsys, *arguments, "--mean-new-tokens", "455.5555555555", "--share-at-limit", "0.1"
        )["time"][0]["throughput"][0]
        assert mixed["pages_per_second"] < 0.8 * alike["pages_per_second"]

    def test_more_pages_than_fit_wait_and_are_said_not_to_fit(self, capsys):
        [entry] = timed(capsys, "rtx-4090", "--concurrency", "16,5000")["time"]
        few, many = entry["throughput"]
        assert few["fits"]
        assert not many["fits"]
        assert entry["largest_concurrency"] < 5000
        waiting = many["ttft_seconds"] / few["ttft_seconds"]
        assert waiting > 100

    @pytest.mark.exhaustive
    def test_fewer_bits_leave_room_for_more_pages(self, capsys):
        [full] = timed(capsys, "l4")["time"]
        [cache] = timed(capsys, "l4", "--kv-dtype", "fp8")["time"]
        [both] = timed(capsys, "l4", "--kv-dtype", "fp8", "--weights-dtype", "int4")["time"]
        assert 1.9 * full["largest_concurrency"] < cache["largest_concurrency"]
        assert cache["largest_concurrency"] < both["largest_concurrency"]
        assert both["assumptions"]["weights_dtype"] == "int4"
        assert "gemm.int4" in both["profile"]["assumed"]

    @pytest.mark.exhaustive
    def test_every_gpu_of_the_catalogue_but_those_without_the_type(self, capsys):
        assert main(["time", "--format", "json"]) == 0
        printed = capsys.readouterr()
        gpus = [entry["gpu"] for entry in json.loads(printed.out)["time"]]
        assert "t4" not in gpus
        assert len(gpus) == len(set(gpus)) > 20
        assert "left out: T4 has no bfloat16" in printed.err

    def test_a_profile_of_the_users_own_adds_a_gpu(self, capsys, tmp_path):
        file = tmp_path / "mine.toml"
        file.write_text(
            'name = "mine"\n[gpu]\ntitle = "Mine"\ntensor_tflops = 500\nbandwidth_gb_s = 2000\n'
            'memory_gb = 48\nsource = "me"\nsms = 100\nl2_mb = 50\nlike = "h100-sxm"\n'
        )
        [entry] = timed(capsys, "mine", "--profile", str(file))["time"]
        assert entry["gpu"] == "mine"
        assert "gemm.bfloat16" in entry["profile"]["extrapolated"]


class TestRefusals:
    @pytest.mark.parametrize(
        ("arguments", "said"),
        [
            (["h10"], "no GPU 'h10' in the catalogue; did you mean"),
            (["t4"], "T4 has no bfloat16; use --dtype float16"),
            (["h100", "--dtype", "float32"], "--dtype float32: attention was measured in 16 bits"),
            (["a100", "--weights-dtype", "fp8"], "float8"),
            (["a100", "--kv-dtype", "fp8"], "A100 80 GB SXM has no float8; use --kv-dtype"),
            (["h100", "--kv-dtype", "fp5"], "fp5"),
            (["h100", "--weights-dtype", "fp5"], "fp5"),
            (["h100", "--runtime", "lazy"], "--runtime 'lazy' is unknown; use eager, serving"),
            (["h100", "--server", "vlm"], "--server 'vlm' is unknown; did you mean vllm?"),
            (["h100", "--concurrency", "0"], "--concurrency"),
            (["h100", "--concurrency", "1:5000"], "give at most 1000"),
            (["h100", "--preprocess-ms", "-1"], "--preprocess-ms -1 is out of range"),
            (["h100", "--preprocess-ms", "nan"], "--preprocess-ms nan is out of range"),
            (["h100", "--workers", "0"], "--workers 0 is too small; give 1 or more"),
            (["h100", "--price", "0"], "--price 0 is out of range"),
            (["h100", "--reserved", "1"], "--reserved 1"),
            (["h100", "--share-at-limit", "0.1"], "needs --mean-new-tokens"),
            (["h100", "--new-tokens-from", "nowhere.csv"], "nowhere.csv"),
            (["h100", "--plot", "load.gif"], "load.gif"),
            (["h100", "--runtime", "eager", "--weights-dtype", "int8"], "--runtime serving"),
        ],
    )  # fmt: skip
    def test_what_is_not_possible_is_refused_by_name(self, capsys, arguments, said):
        error = refused(capsys, *arguments)
        assert said in error
        assert error.count("\n") == 1

    def test_lengths_are_given_once(self, capsys, tmp_path):
        file = tmp_path / "lengths.csv"
        file.write_text("new_tokens\n5\n")
        arguments = ("h100", "--new-tokens-from", str(file), "--mean-new-tokens", "4")
        assert "leave out --mean-new-tokens" in refused(capsys, *arguments)

    @pytest.mark.exhaustive
    def test_latent_attention_is_not_served_but_runs_eagerly(self, capsys, tmp_path):
        from dsocr_analyze.architectures import DEFAULT

        config = json.loads((DEFAULT.reference / "config.json").read_text())
        latent = {"use_mla": True, "kv_lora_rank": 512, "q_lora_rank": None, "v_head_dim": 128,
                  "qk_nope_head_dim": 128, "qk_rope_head_dim": 64}  # fmt: skip
        file = tmp_path / "config.json"
        file.write_text(json.dumps(config | latent))
        assert "'use_mla' is true" in refused(capsys, "h100", "--config", str(file))
        assert main(["time", "h100", "--config", str(file), "--runtime", "eager"]) == 0


class TestText:
    def test_the_tables_name_gpu_and_runtime_and_the_assumptions_follow(self, capsys, monkeypatch):
        monkeypatch.setenv("COLUMNS", "132")
        assert main(["time", "h100", "--price", "2"]) == 0
        out = capsys.readouterr().out
        assert "h100-sxm, serving, vllm: one page alone, predicted" in out
        assert "per 1,000 pages" in out
        assert "error assumed, not measured: masked_attention" in out
        assert "nothing was run" in out.splitlines()[0]

    def test_markdown_has_the_same_tables(self, capsys):
        assert main(["time", "h100", "--format", "markdown"]) == 0
        out = capsys.readouterr().out
        assert out.count("| --- |") + out.count("---: |") > 2
        assert "## Assumptions" in out

    @pytest.mark.exhaustive
    def test_a_plot_is_written(self, capsys, tmp_path):
        assert main(["time", "h100", "l40s", "--plot", "load.svg"]) == 0
        text = (tmp_path / "load.svg").read_text()
        assert "pages per second" in text
        assert ">l40s<" in text


@pytest.mark.exhaustive
def test_torch_is_not_imported():
    code = (
        "import sys\nfrom dsocr_analyze.cli import main\n"
        "main(['time', 'h100', '--runtime', 'eager,serving'])\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


class TestReports:
    @pytest.mark.exhaustive
    def test_gpu_adds_time_to_the_report_that_fits_the_schema(self, capsys):
        arguments = ["--engine", "analytic", "--gpu", "h100", "--gpu", "a100", "--json", "-"]
        assert main([*arguments, "--concurrency", "4"]) == 0
        document = json.loads(capsys.readouterr().out)
        jsonschema.validate(document, schemas()["schema.json"])
        assert [(e["gpu"], e["runtime"]) for e in document["time"]] == [
            ("h100-sxm", "eager"), ("a100-80gb-sxm", "eager"),
        ]  # fmt: skip

    @pytest.mark.exhaustive
    def test_without_gpu_the_list_is_empty(self, capsys):
        assert main(["--engine", "analytic", "--json", "-"]) == 0
        assert json.loads(capsys.readouterr().out)["time"] == []

    @pytest.mark.exhaustive
    def test_the_report_and_the_command_predict_the_same(self, capsys):
        assert main(["--engine", "analytic", "--gpu", "l40s", "--runtime", "serving", "--json", "-",
                     "--concurrency", "1,4,16"]) == 0  # fmt: skip
        [in_report] = json.loads(capsys.readouterr().out)["time"]
        assert timed(capsys, "l40s")["time"] == [in_report]

    @pytest.mark.exhaustive
    def test_compare_puts_predicted_seconds_side_by_side(self, capsys):
        arguments = ["compare", "tiny", "gundam", "--gpu", "h100", "--price", "2", "--format"]
        assert main([*arguments, "json"]) == 0
        rows = {row["key"]: row for row in json.loads(capsys.readouterr().out)["rows"]}
        tiny, gundam = rows["h100_sxm_serving_ttft_seconds"]["values"]
        assert tiny < gundam
        assert rows["h100_sxm_serving_cost_per_thousand_pages_1"]["unit"] == "price"

    @pytest.mark.parametrize(
        "arguments",
        [
            ["--engine", "analytic", "--price", "3"],
            ["--runtime", "eager"],
            ["compare", "tiny", "--concurrency", "4"],
        ],
    )
    def test_an_option_of_seconds_without_a_gpu_is_refused(self, capsys, arguments):
        assert main(arguments) == 2
        assert "give --gpu too, or leave it out" in capsys.readouterr().err

    def test_what_cannot_be_predicted_is_refused_before_the_model_is_built(self, capsys):
        assert main(["--dtype", "float32", "--gpu", "h100"]) == 2
        printed = capsys.readouterr()
        assert "attention was measured in 16 bits only" in printed.err
        assert "torch" not in printed.err

    def test_compare_says_what_its_seconds_assume(self, capsys):
        assert main(["compare", "tiny", "--gpu", "h100"]) == 0
        assert "Assumed: serving: every page generates 1024 tokens" in capsys.readouterr().out
        assert main(["compare", "tiny", "--gpu", "h100", "--format", "json"]) == 0
        assert json.loads(capsys.readouterr().out)["assumptions"]
        assert main(["compare", "tiny", "--format", "json"]) == 0
        assert json.loads(capsys.readouterr().out)["assumptions"] == []
