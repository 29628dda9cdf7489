"""Commands that fit together: one spelling, one help text; names in any case; what was meant."""

import os
import re
from collections import defaultdict
from typing import ClassVar

import pytest
import typer
from command_line import run
from hypothesis import given, strategies as st
from relatives import FAMILY
from sampling import every, first, sampled

from dsocr_analyze.architectures import ARCHITECTURES, DEFAULT
from dsocr_analyze.cli import options
from dsocr_analyze.cli.commands import application
from dsocr_analyze.cli.exits import main
from dsocr_analyze.errors import did_you_mean, in_any_case, near_to
from dsocr_analyze.hardware.devices import gpu_catalogue
from dsocr_analyze.kernels import MODEL_DTYPES

COMMANDS = {"": application, **application.commands}


@pytest.fixture(autouse=True)
def _somewhere_else(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    (tmp_path / "pages.csv").write_text("width,height\n100,200\n", encoding="utf-8")


def options_of(command):
    found = (each for each in COMMANDS[command].params if each.param_type_name == "option")
    return {each.opts[0]: each for each in found}


class TestOneSpelling:
    OWN_MEANING: ClassVar = {
        "--output": "results go there, and what they are is the command's own",
        "--plot": "what is drawn is the command's own",
        "--quantity": "what there is to draw is the command's own",
        "--format": "what there is to choose from is the command's own",
        "--device": "what is done there, and where it is by default, is the command's own",
        "--corrections": "devices lists what the others switch on",
    }
    """Options that mean something of the command's own, and what."""

    INFER: ClassVar = {"--image", "--max-new-tokens", "--prompt"}
    """Options of infer that say what it is called with, where others count without an image."""

    LISTS: ClassVar = {"LIST": "several values between commas", "FILE ...": "several files"}
    """What --help calls the value of an option that takes several."""

    def test_one_meaning_has_one_help_text_one_metavar_and_one_name(self):
        helps, metavars, names = defaultdict(set), defaultdict(set), defaultdict(set)
        for command in COMMANDS:
            for name, option in options_of(command).items():
                if name in self.OWN_MEANING:
                    continue
                kind = "several" if option.metavar in self.LISTS else option.metavar
                names[option.help].add(name)
                if kind != "several":
                    metavars[name].add(kind)
                if command != "infer" or name not in self.INFER:
                    helps[name, kind].add(option.help)
        for found in (helps, metavars, names):
            assert {key: values for key, values in found.items() if len(values) > 1} == {}


class TestEverywhere:
    """Options of the page, the model, its types and the GPU, where they make sense."""

    COUNTING: ClassVar = {
        *("", "archive", "compare", "fit", "infer", "measure", "sweep", "time", "tree"),
    }
    LACKING: ClassVar = {
        ("compare", "--base-size"): "its items are sizes, as 1024/640",
        ("compare", "--image-size"): "the same",
        ("compare", "--crop-mode"): "the same",
        ("sweep", "--base-size"): "--mode takes sizes",
        ("sweep", "--image-size"): "the same",
        ("sweep", "--crop-mode"): "the same",
        ("sweep", "--image"): "archive takes images",
        ("sweep", "--seq-len"): "its axis is --text-tokens",
        ("sweep", "--prompt"): "the same",
        ("sweep", "--prompt-pages"): "has no such axis",
        ("time", "--batch-size"): "--concurrency says how many pages are in flight",
        ("infer", "--config"): "a directory's own infer() runs",
        ("infer", "--dtype"): "infer() casts to bfloat16",
        ("infer", "--page"): "reads an image",
        ("infer", "--seq-len"): "the prompt says it",
        ("infer", "--text-tokens"): "the prompt says it",
        ("infer", "--batch-size"): "infer() reads one page",
        ("infer", "--prompt-pages"): "infer() reads one page",
    }
    OF_A_PAGE = (
        *("--mode", "--base-size", "--image-size", "--crop-mode", "--page", "--image"),
        *("--seq-len", "--text-tokens", "--prompt", "--batch-size", "--prompt-pages"),
    )
    OF_A_MODEL = ("--model", "--arch", "--config", "--dtype", "--use-flash-attn", "--strict")

    def test_every_command_that_counts_has_them_or_a_reason(self):
        for command in self.COUNTING:
            names = options_of(command)
            of_a_page = () if command == "archive" else self.OF_A_PAGE
            for name in (*self.OF_A_MODEL, *of_a_page):
                assert (name in names) != ((command, name) in self.LACKING), (command, name)

    @pytest.mark.parametrize("command", ["", "compare", "time", "sweep", "archive"])
    def test_every_command_with_seconds_has_every_option_of_them(self, command):
        at_once = "batch-size" if command == "sweep" else "concurrency"
        wanted = {"gpu", "runtime", at_once, *options.OF_PREDICTIONS}
        assert {f"--{name.replace('_', '-')}" for name in wanted} <= options_of(command).keys()

    @pytest.mark.parametrize("command", ["fit", "devices"])
    def test_a_gpu_is_an_argument_or_an_option_of_one_or_several(self, capsys, command):
        ways = ("h100 l4", "h100,l4", "--gpu h100,l4", "--gpu h100 --gpu l4", "h100 --gpu L4")
        outputs = {run(capsys, command, *way.split(), "--format", "markdown") for way in ways}
        assert [code for code, *_ in outputs] == [0]

    def test_a_file_or_a_limit_is_a_result(self, capsys, tmp_path):
        assert run(capsys, "sweep", "--mode", "tiny", "-q", "--output", "rows.csv") == (0, "", "")
        assert (tmp_path / "rows.csv").stat().st_size
        assert run(capsys, "advise", "-q", "--mode", "tiny", "--minimum-dpi", 1)[:2] == (0, "")


class TestCase:
    @sampled(
        ("arguments", "same"),
        [
            (("fit", "H100-SXM", "--mode", "Gundam"), ("fit", "h100-sxm", "--mode", "gundam")),
            (("FIT", "h100", "--page", "A4@200"), ("fit", "h100", "--page", "a4@200")),
            (("fit", "h100", "--dtype", "BF16"), ("fit", "h100", "--dtype", "bfloat16")),
            (
                ("fit", "h100", "--arch", "DeepSeek-OCR-2"),
                ("fit", "h100", "--arch", "deepseek-ocr-2"),
            ),
            (("fit", "h100", "--format", "Markdown"), ("fit", "h100", "--format", "markdown")),
            (("compare", "Tiny", "BASE"), ("compare", "tiny", "base")),
            (("compare", "DeepSeek-OCR:Tiny"), ("compare", "deepseek-ocr:tiny")),
            (("sweep", "--mode", "Tiny,ALL"), ("sweep", "--mode", "tiny,all")),
            (("tree", "--no-trace", "--stage", "SAM"), ("tree", "--no-trace", "--stage", "sam")),
            (("time", "h100", "--runtime", "Eager"), ("time", "h100", "--runtime", "eager")),
        ],
        every(5),
    )
    def test_names_are_known_in_any_case(self, capsys, arguments, same):
        found = run(capsys, *same)
        assert found[0] == 0
        assert run(capsys, *arguments) == found

    @pytest.mark.exhaustive
    @given(st.sampled_from([*DEFAULT.modes, *MODEL_DTYPES, *FAMILY]), st.data())
    def test_any_mixture_of_cases_is_the_name(self, name, data):
        mixed = "".join(data.draw(st.sampled_from([each.upper(), each])) for each in name)
        assert in_any_case(mixed, [*DEFAULT.modes, *MODEL_DTYPES, *FAMILY]) == name

    def test_what_differs_in_case_alone_is_not_guessed(self):
        assert in_any_case("AB", ["ab", "aB"]) is None
        assert in_any_case("aB", ["ab", "aB"]) == "aB"


class TestDidYouMean:
    @pytest.mark.parametrize(
        ("arguments", "told"),
        [
            (("gundam",), "did you mean dsocr-analyze --mode gundam?"),
            (("Tiny",), "did you mean dsocr-analyze --mode tiny?"),
            (("dynamic",), "did you mean dsocr-analyze --arch deepseek-ocr-2 --mode dynamic?"),
            (("deepseek-ocr-2",), "did you mean dsocr-analyze --arch deepseek-ocr-2?"),
            (("letter@300",), "did you mean dsocr-analyze --page letter@300?"),
            (("h100",), "did you mean dsocr-analyze time h100-sxm?"),
            (("gundum",), "did you mean --mode gundam?"),
            (("compar",), "did you mean compare?"),
            (("frobnicate",), "there are compare, advise, sweep, archive, check,"),
            (
                ("--bach-size", "2"),
                "no option --bach-size; did you mean --batch-size? see dsocr-analyze --help",
            ),
            (
                ("fit", "--bach-size", "2"),
                "did you mean --batch-size? see dsocr-analyze fit --help",
            ),
            (
                ("tree", "--gpu", "h100"),
                "dsocr-analyze tree has no option --gpu, which is an option of the main command, ",
            ),
            (("fit", "h101"), "no GPU 'h101' in the catalogue; did you mean h100-sxm?"),
            (("time", "--gpu", "rtx4091"), "did you mean rtx-4090?"),
            (("fit", "--mode", "gundum"), "did you mean gundam? use tiny,"),
            (("fit", "--dtype", "bfloat"), "did you mean bfloat16?"),
            (("fit", "--arch", "deepseek-ocr2"), "did you mean deepseek-ocr-2"),
            (("fit", "--format", "jsn"), "did you mean json?"),
            (("fit", "--page", "leter"), "did you mean letter?"),
            (("compare", "gundum"), "did you mean gundam?"),
            (("time", "h100", "--server", "vlm"), "did you mean vllm?"),
            (
                ("--crop-mode", "true"),
                "--crop-mode 'true' is invalid; did you mean 1? give 0"
                " or 1; see dsocr-analyze --help-all",
            ),
            (
                ("fit", "--crop-mode", "off"),
                "did you mean 0? give 0 or 1; see dsocr-analyze fit --help-all",
            ),
            (
                ("--max-new-tokens", "1k"),
                "--max-new-tokens '1k' is invalid; did you mean 1000?",
            ),
            (("time", "--max-new-tokens", "2,048"), "did you mean 2048?"),
            (
                ("fit", "--reserved", "10%"),
                "--reserved '10%' is invalid; did you mean 0.1? give"
                " a number from 0 to 1; see dsocr-analyze fit --help-all",
            ),
            (("fit", "--reserved", "0,5"), "--reserved '0,5' is invalid; did you mean 0.5?"),
            (("fit", "--reserved", "0,5%"), "did you mean 0.005?"),
            (("fit", "--reserved", "5,0"), "--reserved '5,0' is invalid; give a number from"),
            (
                ("fit", "--batch-size", "many"),
                "--batch-size 'many' is invalid; give a whole"
                " number of pages; see dsocr-analyze fit --help",
            ),
            (("time", "--price", "x"), "--price 'x' is invalid; give a number"),
            (
                ("fit", "--model"),
                "--model needs a value: --model DIR; see dsocr-analyze fit --help",
            ),
            (("fit", "--debug=1"), "--debug takes no value; see dsocr-analyze fit --help-all"),
            (("infer",), "--image is missing; give it as --image FILE; see dsocr-analyze infer"),
            *(
                (("--page", "a4", "fit", "h100"), "--page before fit has no effect"),
                (("--mode", "a4", "fit", "h100"), "--mode before fit has no effect"),
            ),
            *(
                (command.split(), f"--quiet leaves nothing to show; give {results} too")
                for command, results in (
                    ("sweep -q", "--output or --plot"),
                    ("archive pages.csv -q", "--output"),
                    ("archive pages.csv --format json -q", "--output"),
                    ("advise -q", "--minimum-dpi, --maximum-compression or --json"),
                )
            ),
        ],
    )
    def test_a_slip_is_answered_in_one_line_with_what_was_meant(self, capsys, arguments, told):
        code, out, err = run(capsys, *arguments)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert told in err

    @given(st.sampled_from(list(gpu_catalogue())), st.data())
    def test_one_letter_dropped_from_a_long_name_still_finds_it(self, name, data):
        place = data.draw(st.integers(0, len(name) - 1))
        slip = name[:place] + name[place + 1 :]
        assert len(name) < 6 or slip in gpu_catalogue() or near_to(slip, gpu_catalogue())

    def test_what_is_far_behind_the_closest_is_not_meant(self):
        names = ["abc", "abcdefgh", "abcdx"]  # 2 x 3 / 8 = 0.75, 2 x 5 / 13 = 0.77, 2 x 4 / 10
        assert near_to("abcde", names) == ("abcdx", "abcdefgh")
        assert did_you_mean("frobnicate", ["tiny", "base"]) == ""

    @pytest.mark.exhaustive
    @pytest.mark.parametrize("command", COMMANDS)
    def test_no_number_anywhere_gets_the_parsers_own_words(self, capsys, command):
        for name, option in options_of(command).items():
            annotation = getattr(option.type_descriptor, "annotation", None)
            if annotation in (int, float):
                _, _, err = run(capsys, *filter(None, [command]), name, "nonsense")
                assert f"{name} 'nonsense' is invalid; " in err, err
                assert "Input should" not in err
                assert f"see {f'dsocr-analyze {command}'.strip()} --help" in err


class TestSizes:
    """Sizes that run but are odd are warned of once, and fail under --strict."""

    @sampled(
        "command",
        ["fit h100", "--engine analytic -q", "time h100", "tree --depth 0"],
        first(1),
    )
    def test_swapped_sizes(self, capsys, command):
        swapped = f"{command} --base-size 640 --image-size 1024".split()
        code, _, err = run(capsys, *swapped)
        said = "warning: --base-size 640 is below --image-size 1024"
        right = "give --base-size 1024 and --image-size 640"
        assert (code, err.count(said), right in err) == (0, 1, True)
        assert run(capsys, *swapped, "--strict")[0] == 3
        if command == "fit h100":  # without crops the other size does not matter
            assert run(capsys, *swapped, "--crop-mode", 0)[::2] == (0, "")

    @pytest.mark.exhaustive
    @pytest.mark.parametrize(
        ("size", "told"),
        [
            # 62 patches of 16 pixels are 992; a quarter of 62, rounded up, is 16
            (
                1000,
                "only 992 of 1000 pixels per side are used, in 62 patches of 16 pixels, which"
                " become the 16 tokens per side of 1024 pixels; give 960 or 1024",
            ),
            # 65 patches; a quarter, rounded up, is 17
            (
                1040,
                "is not a multiple of 64: 65 patches of 16 pixels, which become the 17 tokens per"
                " side of 1088 pixels; give 1024 or 1088",
            ),
        ],
    )
    def test_odd_sizes(self, capsys, size, told):
        _, _, err = run(capsys, "fit", "h100", "--base-size", size)
        assert f"--base-size {size} is not a multiple of 64" in err
        assert (err.count("warning:"), told in err) == (1, True)
        _, _, err = run(capsys, "compare", size, "--format", "csv")
        assert f"--image-size {size} is not a multiple of 64" in err

    @pytest.mark.parametrize("architecture", FAMILY)
    def test_no_published_mode_is_odd(self, architecture):
        for mode in ARCHITECTURES[architecture].modes.values():
            sizes = {name: getattr(mode, name) for name in ("base_size", "image_size", "crop_mode")}
            workload = ARCHITECTURES[architecture].plan(page=(1240, 1754), **sizes)
            assert list(ARCHITECTURES[architecture].warnings_of(workload)) == []


@pytest.mark.parametrize(
    ("command", "told"),
    [
        ("fit --config mine.json", "dsocr-analyze: 'mine.json' lacks 'hidden_size'\n"),
        *(
            (
                f"--config heads.json --engine {engine} -q",
                "heads.json': 'num_attention_heads' is 7; give a divisor of 'hidden_size', 1280",
            )
            for engine in ("trace", "analytic")
        ),
        *(
            (f"{command} {option}", "it is a llama model (LlamaForCausalLM)")
            for command in ("", "fit", "--engine analytic")
            for option in ("--model llama", "--config llama/config.json")
        ),
        # With --model it shows the modules.
        ("tree --config llama/config.json", "--stages FILE (docs/any-model.md)"),
        ("tree --no-trace --page a4", "--page"),
    ],
)
def test_a_config_is_called_by_its_own_file_and_told_what_it_is(capsys, tmp_path, command, told):
    text = (DEFAULT.reference / "config.json").read_text()
    (tmp_path / "mine.json").write_text(re.sub(r'"hidden_size": 1280,?', "", text))
    heads = re.sub(r'("num_(?:attention|key_value)_heads"): 10', r"\1: 7", text)
    (tmp_path / "heads.json").write_text(heads)
    (tmp_path / "llama").mkdir()
    (tmp_path / "llama/config.json").write_text(
        '{"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 64}'
    )
    code, out, err = run(capsys, *command.split())
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert told in err


class TestCompletion:
    """What a shell is offered for a value."""

    @pytest.mark.parametrize(
        ("typed", "offered"),
        [
            (("fit", "--mode", "gun"), {"gundam", "gundam-m"}),
            (("--mode", "Ti"), {"Tiny"}),
            (("fit", "h100"), {"h100-sxm", "h100-pcie", "h100-nvl"}),
            (("time", "h100-sxm", "rtx-509"), {"rtx-5090"}),
            (("time", "--gpu", "l40s,h100-s"), {"l40s,h100-sxm"}),
            (("fit", "--dtype", "b"), {"bfloat16"}),
            (("sweep", "--dtype", "bfloat16,f"), {"bfloat16,float16", "bfloat16,float32"}),
            (("tree", "--page", "le"), {"letter", "legal"}),
            (("--arch", "deepseek-ocr-"), {"deepseek-ocr-2"}),
            (
                ("compare", "unlimited-ocr:"),
                {f"unlimited-ocr:{mode}" for mode in ("gundam", "base", "tiny", "small", "large")},
            ),
            (("fit", "--use-flash-attn", ""), {"0", "1"}),
            (("fit", "--format", "m"), {"markdown"}),
            (("compare", "--engine", ""), {"trace", "analytic"}),
            (("time", "--server", "sg"), {"sglang"}),
            (("com",), {"compare"}),
            (("time", "-q", "--weights-d"), {"--weights-dtype"}),  # --help leaves it out
            (("--help-",), {"--help-all"}),
        ],
    )
    def test_values_are_offered(self, capfd, monkeypatch, typed, offered):
        monkeypatch.setenv("_DSOCR_ANALYZE_COMPLETE", "complete_bash")
        monkeypatch.setenv("COMP_WORDS", " ".join(["dsocr-analyze", *typed]))
        monkeypatch.setenv("COMP_CWORD", str(len(typed)))
        main([])
        assert set(capfd.readouterr().out.split()) == offered
        assert "_DSOCR_ANALYZE_COMPLETE" in os.environ

    def test_every_option_with_choices_completes_them(self):
        for command in COMMANDS:
            context = typer.Context(COMMANDS[command])
            for name, option in options_of(command).items():
                metavar = option.metavar or ""
                if re.fullmatch(r"[a-z0-9-]+(\|[a-z0-9-]+)+", metavar):
                    found = {each.value for each in option.shell_complete(context, "")}
                    assert set(metavar.split("|")) <= found, (command, name)
