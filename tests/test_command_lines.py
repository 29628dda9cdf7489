"""Command lines that are refused: one line on stderr, the exit code, and no file written."""

import io
import shlex
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command_line import run

from dsocr_analyze import analyze
from dsocr_analyze.architectures import ARCHITECTURES
from dsocr_analyze.report.opening import dump_json

FILES = {
    "pages.csv": b"width,height\n1240,1754\nabc,1\n640,640\n1240,1754\n",
    "given.csv": b"width,height,max_new_tokens\n640,640,100\n",
    "lengths.csv": b"new_tokens\n100\n",
    "empty.csv": b"",
    "ab.csv": b"a,b\n1,2\n",
    "close.csv": b"widht,weight\n1,2\n",
    "semicolons.csv": b"width;height\n1,2\n",
    "pages.jsonl": b'{"width": 1, "height": 2}\n',
    "utf16.csv": "width,height\n1,2\n".encode("utf-16"),
    "twice.csv": b"width,width,height\n1,2,3\n",
    "open.csv": b'width,"height\n1,2\n',
    "png.csv": b"\x89PNG\r\n\x1a\n\x00\x00",
    "book.pdf": b"%PDF-1.4\n",
    "cut.png": b"\x89PNG\r\n\x1a\n\x00\x00",
    "text.parquet": b"width,height\n1,2\n",
    "short.parquet": b"PAR1 and nothing more",
    "pages.csv.gz": b"no gzip",
    "docs/a.docx": b"text",
    "brace.json": b"{",
    "marked.json": b"\xef\xbb\xbf{}",
    "list.json": b"[]",
    "bare.json": b"{}",
    "part.json": b'{"schema_version": "2"}',
    "measured.json": b'{"schema_version": "2", "command": "measure"}',
    "early.json": b'{"schema_version": "1"}',
    "saved/static_compute.json": b"{}",
    "model/config.json": b"{}",
    "code.json/model.py": b"{}",
    "one.json": (ARCHITECTURES["deepseek-ocr"].reference / "config.json").read_bytes(),
    "two.json": (ARCHITECTURES["deepseek-ocr-2"].reference / "config.json").read_bytes(),
}

REFUSED = [
    # The arguments, the exit code, and what is said.
    ("--gpu l4 --share-at-limit 100%", 2,
     "--share-at-limit '100%' is invalid; did you mean 1? give a number from 0 to 1; see"
     " dsocr-analyze --help-all"),
    ("--gpu l4 --share-at-limit 110%", 2,
     "--share-at-limit '110%' is invalid; give a number from 0 to 1; see dsocr-analyze --help-all"),
    ("--crop-mode true", 2,
     "--crop-mode 'true' is invalid; did you mean 1? give 0 or 1; see dsocr-analyze --help-all"),
    ("--batch-size 1k", 2,
     "--batch-size '1k' is invalid; did you mean 1000? give a whole number of pages; see"
     " dsocr-analyze --help"),
    ("--max-new-tokens 1.5k", 2,
     "--max-new-tokens '1.5k' is invalid; did you mean 1500? give a number of tokens; see"
     " dsocr-analyze --help"),
    ("archive pages.csv --gpu l4 --runtime eager,serving", 2,
     "--runtime has several values, 'eager' and 'serving'; give one, or several to dsocr-analyze"
     " compare, advise, time"),
    ("time l4 --format csv,json", 2, "--format has several values, 'csv' and 'json'; give one"),
    ("plan --pages 1k --kind newspaper", 2,
     "dsocr-analyze plan has no option --kind, which is an option of advise; see dsocr-analyze plan"
     " --help"),
    ("docs --html page.html", 2,
     "dsocr-analyze docs has no option --html, which is an option of the main command, compare; see"
     " dsocr-analyze docs --help"),
    ("time l4 --concurrency all", 2,
     "--concurrency 'all' is unknown; give numbers from 1 to 65536 or ranges, like 1,4,16 or 1:64,"
     " knee or max"),
    ("time l4 --concurrency 16,kneee", 2,
     "--concurrency 'kneee' is unknown; did you mean knee? give numbers from 1 to 65536 or ranges,"
     " like 1,4,16 or 1:64, knee or max"),
    ("time l4 --price 2,5", 2,
     "--price '2,5' is invalid; did you mean 2.5? give a number, or one per GPU like"
     " h100-sxm:2.5,l40s:0.8; see dsocr-analyze time --help"),
    ("time l4 --preprocess-ms 0,125", 2,
     "--preprocess-ms '0,125' is invalid; did you mean 0.125? give a number of milliseconds; see"
     " dsocr-analyze time --help-all"),
    ("time l4 --price 1,500", 2,
     "--price '1,500' is invalid; did you mean 1500? give a number, or one per GPU like"
     " h100-sxm:2.5,l40s:0.8; see dsocr-analyze time --help"),
    ("time l4 --workers 1,5", 2,
     "--workers '1,5' is invalid; give a number; see dsocr-analyze time --help-all"),
    ("plan --pages 1k --deadline 1,5h", 2,
     "--deadline '1,5h' is invalid; did you mean 1.5h, with a point? give a time above 0 like 90m,"
     " 12h, 3d, or hours"),
    ("plan --pages 1k --first-token 0,8s", 2,
     "--first-token '0,8s' is invalid; did you mean 0.8s, with a point? give a time above 0 like 2s"
     " or 800ms"),
    ("plan --pages 1,5M", 2,
     "--pages '1,5M' is invalid; did you mean 1.5M, with a point? give a whole number from 1 to"
     " 10^15 like 2000000, 500k or 2M"),
    ("plan --pages 1k --mix a4@200:0,8,a3@300:0,2", 2,
     "--mix 'a4@200:0' is no page with its share; did you mean a4@200:0.8,a3@300:0.2, with a point?"
     " give a list like a4@200:0.8,a3@300:0.2"),
    ("fit --memory-gb 11,5GiB", 2,
     "--memory-gb '11,5GiB' is invalid; did you mean 11.5GiB, with a point? give a number above 0,"
     " at most 100000, like 12, 11.5 or 12GiB"),
    ("--config", 2, "--config needs a value: --config FILE; see dsocr-analyze --help"),
    ("--full=1", 2, "--full takes no value; see dsocr-analyze --help"),
    ("--base-size 0", 2, "--base-size 0 is too small; give 64 to 16384 pixels per side"),
    ("--image-size 63", 2, "--image-size 63 is too small; give 64 to 16384 pixels per side"),
    ("--base-size 1000000000", 2,
     "--base-size 1000000000 is too large; give 64 to 16384 pixels per side"),
    ("--base-size big", 2,
     "--base-size 'big' is invalid; give a whole number of pixels; see dsocr-analyze --help-all"),
    ("--base-size", 2,
     "--base-size needs a value: --base-size PIXELS; see dsocr-analyze --help-all"),
    ("help", 2, "no command 'help'; did you mean dsocr-analyze --help?"),
    ("version", 2, "no command 'version'; did you mean dsocr-analyze --version?"),
    ("time --tp 2", 2,
     "no option --tp: a GPU runs the whole model, which is never split over several;"
     " see dsocr-analyze time --help"),
    # Dashes make no two options alike.
    ("plan --electricity 0.3", 2, "no option --electricity; see dsocr-analyze plan --help"),
    ("--crop-mod 1", 2, "no option --crop-mod; did you mean --crop-mode? see dsocr-analyze --help"),
    ("--seq-len 903", 2,
     "--seq-len 903 is below the 903 visual tokens of the page and BOS; give at least 904"),
    ("--seq-len 950 --text-tokens 3", 2,
     "--seq-len 950 and --text-tokens 3 conflict: the page has 903 visual tokens; give"
     " --seq-len 906, --text-tokens 47, or one of the two"),
    ("--text-tokens 0", 2, "--text-tokens 0 is too small; give 1 to 1048576 tokens, including BOS"),
    ("--mode huge", 2, "--mode 'huge' is unknown; use tiny, small, base, large, gundam, gundam-m"),
    ("--mode tiny --image-size 640", 2,
     "--mode tiny already sets --image-size; give one of them, not --image-size 640"),
    ("--crop-mode 2", 2, "--crop-mode 2 is invalid; give 0 or 1"),
    ("--device tpu", 2, "--device 'tpu' is unknown; use meta, cpu or cuda:N"),
    ("--device cuda:x", 2, "--device 'cuda:x' is unknown; use meta, cpu or cuda:N"),
    ("--dtype int8", 2, "--dtype 'int8' is unknown; use bfloat16, float16, float32"),
    ("--page a99", 2,
     "no page size 'a99'; give a3, a4, a5, letter, legal (at 150 dpi, or at others like"
     " a4@300), or WIDTHxHEIGHT like 1240x1754"),
    ("--page A4@300dpi", 2,
     "no page size 'A4@300dpi'; did you mean a4@300? give a3, a4, a5, letter, legal (at 150 dpi, or"
     " at others like a4@300), or WIDTHxHEIGHT like 1240x1754"),
    ("--page 0x10", 2,
     "a page of 0 x 10 pixels is invalid; give whole numbers from 1 to 1000000 per side"),
    ("--page a4 --image x.png", 2, "give --page a4 or --image x.png, not both"),
    ("--page --page -q", 2,
     "no page size '--page'; give a3, a4, a5, letter, legal (at 150 dpi, or at others like"
     " a4@300), or WIDTHxHEIGHT like 1240x1754"),
    ("--image none.png", 2, "no image 'none.png'; give an image file, or a page size instead"),
    ("--image .", 2, "cannot read the size of image '.': it is a folder, not a file"),
    ("--image cut.png", 2,
     "cannot read the size of image 'cut.png': not an image that Pillow can read; give a PNG,"
     " JPEG, TIFF or WebP file"),
    ("--image book.pdf", 2,
     "cannot read the size of image 'book.pdf': it is a PDF, whose pages dsocr-analyze archive"
     " counts; give a PNG, JPEG, TIFF or WebP file"),
    ("--model nowhere", 2,
     "model directory 'nowhere' does not exist; give a directory with config.json and the"
     " model's Python files, or none at all to run the built-in reference"),
    ("--model .", 2, "no config at 'config.json'; a model directory contains config.json"),
    ("--config none.json", 2, "no config at 'none.json'; a model directory contains config.json"),
    ("--config brace.json", 2,
     "'brace.json' is not JSON: Expecting property name enclosed in double quotes: line 1"
     " column 2 (char 1)"),
    ("--config marked.json", 2,
     "'marked.json' is not JSON: it begins with a byte order mark, which transformers refuses too"),
    ("--config list.json", 2, "'list.json' contains a JSON list, not an object"),
    ("--config bare.json", 2, "'bare.json' lacks 'vision_config'"),
    ("--prompt hi", 2,
     "--prompt needs a model directory with tokenizer.json; the built-in reference has none,"
     " give --text-tokens instead"),
    ("--device cpu --use-flash-attn 1", 2,
     "--use-flash-attn 1 needs a CUDA device or meta: FlashAttention has no CPU kernel;"
     " --use-flash-attn 0 runs eager attention"),
    ("--batch-size 0", 2, "--batch-size 0 is too small; give 1 to 1048576 pages"),
    ("--batch-size 1025", 2,
     "a batch of 1025 pages is too large to trace, as the vision stages run page by page;"
     " give at most 1024, or use --engine analytic"),
    ("--max-new-tokens 0", 2, "--max-new-tokens 0 is too small; give 1 to 1048576 tokens"),
    ("--format xml", 2, "--format 'xml' is unknown; use table, markdown, json, csv, latex"),
    ("--engine fast", 2, "--engine 'fast' is unknown; use trace, analytic"),
    ("--engine analytic --device cpu", 2, "--engine analytic runs nothing; leave out --device cpu"),
    ("--colour", 2, "no option --colour; see dsocr-analyze --help"),
    ("--output pages.csv/out", 74,
     "cannot write to 'pages.csv/out': Not a directory; give a directory that can be written"),
    ("--output /proc/out", 74,
     "cannot write to '/proc/out': No such file or directory; give a directory that can be"
     " written"),
    ("--page a4 --page letter", 2,
     "--page has several values, 'a4' and 'letter'; give one, or several to"
     " dsocr-analyze sweep"),
    ("--json a --json b --json c", 2,
     "--json has several values, 'a', 'b' and 'c'; give one"),
    ("--stages one.json --sliding-window 1", 2,
     "--sliding-window 1 is for known architectures; leave it out with --stages one.json"),
    ("--stages one.json --arch deepseek-ocr", 2,
     "--stages one.json describes an architecture; leave out --arch deepseek-ocr"),
    ("--hf-config one.json", 2,
     "--hf-config one.json only names a model; define its stages and inputs too: --stages"
     " FILE, which dsocr-analyze stages --hf-config one.json drafts"),
    ("--hf-config one.json --stages one.json --model x", 2,
     "'one.json' is not TOML: Invalid statement (at line 1, column 1)"),
    ("frobnicate", 2,
     "no command 'frobnicate'; there are compare, advise, sweep, archive, check, time, plan, fit,"
     " devices, measure, infer, calibrate, tree, stages, trust, docs"),
    ("trust a b", 2,
     "got unexpected extra argument(s) (b); see dsocr-analyze trust --help"),
    ("stage", 2, "no command 'stage'; did you mean stages? see dsocr-analyze --help"),
    ("compare --model A --model=B", 2,
     "--model has several values, 'A' and 'B'; give one, or several to dsocr-analyze"
     " compare --config A/config.json --config B/config.json"),
    ("advise --mode=base --mode small", 2,
     "--mode has several values, 'base' and 'small'; give one list: --mode base,small"),
    ("fit h100-sxm --config 1 --config 2", 2,
     "--config has several values, '1' and '2'; give one, or several to dsocr-analyze"
     " compare"),
    ("infer . --image a.png -i b.png", 2,
     "--image has several values, 'a.png' and 'b.png'; give one"),
    ("infer --image cut.png", 2,
     "cannot read the size of image 'cut.png': not an image that Pillow can read; give a PNG,"
     " JPEG, TIFF or WebP file"),
    ("measure --device meta", 2, "--device 'meta' computes nothing; use cpu or cuda:N"),
    ("measure --device tpu", 2, "--device 'tpu' is unknown; use cpu or cuda:N"),
    ("stages", 2, "name a model: --hf-config FILE or --model DIR"),
    ("stages --model reference", 2, "name a model: --hf-config FILE or --model DIR"),
    ("tree --depth -1", 2, "--depth -1 is too small; give 0 or more"),
    ("tree --stage x", 2, "--stage 'x' is unknown; use sam, clip, projector, prefill, decode"),
    ("tree --leaves --page a4", 2,
     "--page is for a page that is traced; leave it out with --no-trace and --leaves"),
    ("tree --no-trace --page a4", 2,
     "--page is for a page that is traced; leave it out with --no-trace and --leaves"),
    ("archive gone.csv", 2,
     "no list of pages 'gone.csv'; give a Parquet or CSV file with columns width and height,"
     " or a folder of images and PDFs"),
    ("archive empty.csv", 2,
     "cannot read 'empty.csv' as a list of pages: it is empty; give a Parquet or CSV file"
     " with columns width and height, or a folder of images and PDFs"),
    ("archive ab.csv", 2,
     "'ab.csv' has no column 'width' (it has 'a', 'b'); give columns width and height, in"
     " pixels"),
    ("archive close.csv", 2,
     "'close.csv' has no column 'width' (it has 'widht', 'weight'); did you mean width by"
     " 'widht' and height by 'weight'? give columns width and height, in pixels"),
    ("archive twice.csv", 2, "'twice.csv' has 2 columns 'width'; give one"),
    ("archive open.csv", 2,
     "cannot read 'open.csv' as a list of pages: its first line: unexpected end of data; give"
     " a Parquet or CSV file with columns width and height, or a folder of images and PDFs"),
    ("archive png.csv", 2,
     "'png.csv' has no column 'width' (it has '\\x89PNG'); give columns width and height, in"
     " pixels"),
    ("archive text.parquet", 2,
     "'text.parquet' is not a Parquet file; give a Parquet or CSV file with columns width and"
     " height, or a folder of images and PDFs"),
    ("archive short.parquet", 2,
     "cannot read 'short.parquet' as a list of pages: Parquet magic bytes not found in"
     " footer. Either the file is corrupted or this is not a parquet file.; give a Parquet or"
     " CSV file with columns width and height, or a folder of images and PDFs"),
    ("archive torn.parquet", 2,
     "cannot read 'torn.parquet' as a list of pages: Couldn't deserialize thrift:"
     " TProtocolException: Invalid data Deserializing page header failed.; give a Parquet or"
     " CSV file with columns width and height, or a folder of images and PDFs"),
    ("archive bools.parquet", 2, "column 'width' holds bool; give whole numbers"),
    ("archive pages.csv.gz", 2,
     "cannot read 'pages.csv.gz' as a list of pages: zlib inflate failed: incorrect header"
     " check; give a Parquet or CSV file with columns width and height, or a folder of images"
     " and PDFs"),
    ("archive docs", 2,
     "no image or PDF in 'docs' or a folder in it; it contains 1 .docx; give a Parquet or CSV"
     " file with columns width and height, or a folder of images and PDFs"),
    ("archive pages.csv --mode huge", 2,
     "no mode 'huge'; give one of tiny, small, base, large, gundam, gundam-m, or sizes like"
     " 1024/640 (crops) or 640 (no crops)"),
    ("archive pages.csv --text-tokens 0", 2,
     "--text-tokens 0 is too small; give 1 to 1048576 tokens, including BOS"),
    ("archive semicolons.csv", 2,
     "'semicolons.csv' has no column 'width' (it has 'width;height'); separate columns by commas,"
     " not by ';'; give columns width and height, in pixels"),
    ("archive pages.csv --max-new-tokens 1,2", 2,
     "--max-new-tokens '1,2' is invalid; give a number of tokens; see"
     " dsocr-analyze archive --help"),
    ("archive pages.csv --max-new-tokens 1,200", 2,
     "--max-new-tokens '1,200' is invalid; did you mean 1200? give a number of tokens; see"
     " dsocr-analyze archive --help"),
    ("archive pages.csv --format xml", 2, "--format 'xml' is unknown; use table, json"),
    ("archive pages.csv --histogram dpi", 2, "--histogram 'dpi' is unknown; use grid, tokens"),
    ("archive docs --pdf-dpi 0", 2,
     "--pdf-dpi 0 is too small; give 1 to 1000000 pixels to an inch"),
    ("archive docs --pdf-dpi 10000000", 2,
     "--pdf-dpi 10000000 is too large; give 1 to 1000000 pixels to an inch"),
    ("archive pages.jsonl", 2,
     "cannot read 'pages.jsonl' as a list of pages: it is JSON, which is not read; give a Parquet"
     " or CSV file with columns width and height, or a folder of images and PDFs"),
    ("archive utf16.csv", 2,
     "cannot read 'utf16.csv' as a list of pages: it is in UTF-16; save it in UTF-8; give a Parquet"
     " or CSV file with columns width and height, or a folder of images and PDFs"),
    # No PDFs, no effect.
    ("archive pages.csv --pdf-dpi 300", 2,
     "--pdf-dpi 300 is for PDFs, and there are none; leave it out"),
    ("plan --pages 10 --pdf-dpi 300", 2,
     "--pdf-dpi 300 is for PDFs, and there are none; leave it out"),
    ("archive pages.csv --output pages.csv", 2,
     "--output 'pages.csv' is the list of pages itself; give another"),
    ("archive pages.csv --output costs.txt", 2,
     "cannot tell the format of 'costs.txt'; give a name that ends in .csv, .parquet, .pq"),
    ("archive pages.csv --batch-size 2 --output rows.csv", 2,
     "--output rows.csv has one row per page, and a page of a batch has no cost of its own;"
     " leave out --output, or --batch-size 2"),
    ("archive pages.csv --batch-size 2 --gpu h100", 2,
     "--batch-size 2 has no effect on seconds: a GPU takes the pages of a list as they come;"
     " give --concurrency 2 instead"),
    ("archive pages.csv --deadline 3h", 2,
     "--deadline is for predicted seconds; give --gpu too, or leave it out"),
    ("archive pages.csv --concurrency 3", 2,
     "--concurrency is for predicted seconds; give --gpu too, or leave it out"),
    ("archive pages.csv --gpu l40s --deadline soon", 2,
     "--deadline 'soon' is invalid; give a time above 0 like 90m, 12h, 3d, or hours"),
    ("archive pages.csv --gpu l40s --concurrency 0", 2,
     "--concurrency 0 is out of range; give 1 to 65536"),
    ("archive pages.csv --gpu l40s --price -1", 2,
     "--price -1 is out of range; give an amount above 0, and less than 1e9"),
    ("archive pages.csv --gpu l40s --dtype float32", 2,
     "--dtype float32: attention was measured in 16 bits only; use bfloat16 or float16"),
    ("archive given.csv --gpu l40s --mean-new-tokens 50", 2,
     "the list has a column max_new_tokens, which gives the output lengths; leave out"
     " --new-tokens-from and --mean-new-tokens"),
    ("archive pages.csv --format xml", 2, "--format 'xml' is unknown; use table, json"),
    ("sweep --page a9", 2,
     "no page size 'a9'; give a3, a4, a5, letter, legal (at 150 dpi, or at others like"
     " a4@300), or WIDTHxHEIGHT like 1240x1754"),
    ("sweep --page 0x10", 2,
     "a page of 0 x 10 pixels is invalid; give whole numbers from 1 to 1000000 per side"),
    ("sweep --page a4,,a5", 2,
     "--page 'a4,,a5' has an empty item; give pages like a4, a4@100:300:50, 1240x1754 or"
     " 600:2400:200x800:3200:200"),
    ("sweep --page 1:9999999x1", 2,
     "a page of 9999999 x 1 pixels is invalid; give whole numbers from 1 to 1000000 per side"),
    ("sweep --page a4@1:1000000000000000000000000000000", 2,
     "--page a4@1:1000000000000000000000000000000 has 1000000000000000000000000000000 values;"
     " give at most 10000"),
    ("sweep --mode huge", 2,
     "no mode 'huge'; give one of tiny, small, base, large, gundam, gundam-m, or sizes like"
     " 1024/640 (crops) or 640 (no crops)"),
    ("sweep --mode 10", 2,
     "mode '10' is invalid: base_size 10 is too small; give 64 to 16384 pixels per side"),
    ("sweep --mode 64:1000000000000000000000000000000", 2,
     "--mode 64:1000000000000000000000000000000 has 999999999999999999999999999937 values;"
     " give at most 10000"),
    ("sweep --mode 100:9000/100:9000", 2,
     "--mode 100:9000/100:9000 has 79227801 modes; give at most 10000"),
    ("sweep --text-tokens 0", 2,
     "--text-tokens 0 is out of range; give 1 to 1048576: numbers and ranges like"
     " 10,100:1000:100"),
    ("sweep --text-tokens ten", 2,
     "--text-tokens 'ten' is not a whole number or range; give 1 to 1048576: numbers and"
     " ranges like 10,100:1000:100"),
    ("sweep --text-tokens 10:5", 2,
     "--text-tokens 10:5 is an empty range; give START:STOP:STEP, ascending, with a step of 1"
     " or more"),
    ("sweep --text-tokens 1:5:0", 2,
     "--text-tokens 1:5:0 is an empty range; give START:STOP:STEP, ascending, with a step of"
     " 1 or more"),
    ("sweep --text-tokens 1:2:3:4", 2,
     "--text-tokens '1:2:3:4' is not a whole number or range; give 1 to 1048576: numbers and"
     " ranges like 10,100:1000:100"),
    ("sweep --max-new-tokens 1:1000000000000000000000000000000", 2,
     "--max-new-tokens 1000000000000000000000000000000 is out of range; give 1 to 1048576:"
     " numbers and ranges like 10,100:1000:100"),
    ("sweep --batch-size 1.5", 2,
     "--batch-size '1.5' is not a whole number or range; give 1 to 1048576: numbers and"
     " ranges like 10,100:1000:100"),
    ("sweep --dtype int8", 2, "--dtype 'int8' is unknown; use bfloat16, float16, float32"),
    ("sweep --use-flash-attn 2", 2, "--use-flash-attn '2' is invalid; give 0, 1 or 0,1"),
    ("sweep --sliding-window 0", 2,
     "--sliding-window 0 is not supported: deepseek-ocr has no sliding window; leave it out"),
    ("sweep --arch unlimited-ocr --sliding-window 2", 2,
     "--sliding-window '2' is invalid; give 0, 1 or 0,1"),
    ("sweep --plot costs.png --quantity joy", 2,
     "no quantity 'joy' to plot; give one of visual_tokens, seq_len,"
     " prefill_pass_matrix_flops, prefill_pass_vector_flops, prefill_pass_flops,"
     " prefill_pass_bytes_read, prefill_pass_bytes_written, decode_step_matrix_flops,"
     " decode_step_vector_flops, decode_step_flops, decode_step_bytes_read,"
     " decode_step_bytes_written, deco ... h_bytes_read, batch_bytes_written,"
     " page_matrix_flops, page_vector_flops, page_flops, page_bytes_read, page_bytes_written,"
     " kv_cache_bytes, peak_activation_bytes"),
    ("sweep --plot costs.png --x page_widht", 2,
     "no axis 'page_widht' to plot over; did you mean page_width? give one of text_tokens,"
     " max_new_tokens, batch_size, page_width, page_height, image_size, base_size, page, mode,"
     " dtype, attention"),
    ("time l4 --kv-dtype int9", 2,
     "--kv-dtype 'int9' is unknown; did you mean int8 or int4? use bf16, fp8, int8 or int4"),
    ("sweep --plot costs.png --x joy", 2,
     "no axis 'joy' to plot over; give one of text_tokens, max_new_tokens, batch_size,"
     " page_width, page_height, image_size, base_size, page, mode, dtype, attention"),
    ("sweep --plot costs.png --text-tokens 1:30000", 2,
     "a plot of 30,000 rows is not readable; give shorter ranges, for at most 20,000, or no"
     " --plot"),
    ("sweep --mode base,gundam --page 640x640,a4 --text-tokens 1:3 --batch-size 1:9"
     " --output costs.csv --plot costs.png --x page", 2,
     "a plot over page has 54 lines, one per combination of batch_size, text_tokens, mode;"
     " give fewer values, for at most 10 lines"),
    ("sweep --quantity page_flops", 2,
     "--quantity page_flops is for a picture; give --plot FILE too"),
    ("sweep --x mode", 2, "--x mode is for a picture; give --plot FILE too"),
    ("sweep --config gone.json", 2,
     "no config at 'gone.json'; a model directory contains config.json"),
    ("sweep --text-tokens 1:1000000 --max-new-tokens 1:11", 2,
     "the sweep has 11,000,000 rows; give shorter ranges, or --yes to start it anyway"),
    ("sweep --page 1:1000000x1:1000000", 2,
     "--page 1:1000000x1:1000000 has 1000000000000 values; give at most 10000000"),
    ("sweep --yes --page 1:1000x1:1000 --text-tokens 1:1000000 --max-new-tokens 1:1000000"
     " --batch-size 1:10", 2,
     "the sweep has 10000000000000000000 rows; give shorter ranges, for at most"
     " 4611686018427387904"),
    ("sweep --text-tokens 1000000 --batch-size 1000000", 2,
     "prefill_pass_matrix_flops of 62623196498580992000000 does not fit a 64-bit column; give"
     " fewer pages at a time, fewer tokens or smaller views"),
    ("sweep --output costs.txt", 2,
     "cannot tell the format of 'costs.txt'; give a name that ends in .csv, .parquet, .pq"),
    ("sweep --output gone/costs.csv", 74,
     "cannot write 'gone/costs.csv': no folder 'gone'; create it"),
    ("sweep --plot costs.gif", 2,
     "cannot tell the format of picture 'costs.gif'; give a name that ends in .png or .svg"),
    ("sweep --plot gone/costs.png", 74,
     "cannot write 'gone/costs.png': no folder 'gone'; create it"),
    ("sweep --plot a.svg --quantity page_seconds", 2,
     "quantity page_seconds needs predicted seconds; give --gpu too"),
    ("sweep --plot a.svg --gpu l40s --quantity cost_per_thousand_pages", 2,
     "quantity cost_per_thousand_pages needs predicted seconds; give --gpu and --price too"),
    ("sweep --price 2", 2, "--price is for predicted seconds; give --gpu too, or leave it out"),
    ("sweep --runtime eager", 2,
     "--runtime is for predicted seconds; give --gpu too, or leave it out"),
    ("sweep --gpu h1000", 2, "no GPU 'h1000' in the catalogue; did you mean h100-sxm?"),
    ("sweep --gpu h100-sxm,", 2, "--gpu 'h100-sxm,' has an empty item; give names between commas"),
    ("sweep --gpu l40s --runtime eager,serving", 2,
     "--runtime has several values, 'eager' and 'serving'; give one, or several to dsocr-analyze"
     " compare, advise, time"),
    ("sweep --gpu l40s --server vlm", 2,
     "--server 'vlm' is unknown; did you mean vllm? use vllm, vllm-v1, vllm-v0, sglang"),
    ("sweep --gpu l40s --workers 0", 2, "--workers 0 is too small; give 1 or more"),
    ("sweep --gpu l40s --price 0", 2,
     "--price 0 is out of range; give an amount above 0, and less than 1e9"),
    ("sweep --gpu l40s --preprocess-ms -1", 2,
     "--preprocess-ms -1 is out of range; give 0 or more, and less than 1e9"),
    ("sweep --gpu l40s --reserved 1", 2,
     "--reserved 1.0 is out of range; give a fraction, at least 0 and below 1"),
    ("sweep --gpu l40s --dtype bfloat16,float32", 2,
     "--dtype float32: attention was measured in 16 bits only; use bfloat16 or float16"),
    ("sweep --gpu a100 --weights-dtype fp8", 2,
     "A100 80 GB SXM has no weights in float8; use --weights-dtype bfloat16 or float16 or int8"
     " or int4"),
    ("sweep --gpu l40s --runtime eager --kv-dtype fp8", 2,
     "--weights-dtype and --kv-dtype are for --runtime serving; leave them out"),
    ("sweep --gpu l40s --share-at-limit 0.1", 2,
     "--share-at-limit 0.1 needs --mean-new-tokens for the other pages"),
    ("sweep --gpu l40s --mean-new-tokens 50 --max-new-tokens 20,100", 2,
     "--mean-new-tokens 50 is out of range: pages that end before --max-new-tokens 20 generate from"
     " 1 to 19 tokens"),
    ("time l4 --max-new-tokens 1 --mean-new-tokens 1", 2,
     "--max-new-tokens 1 is invalid beside --mean-new-tokens; give a whole number from 2 to"
     " 1048576"),
    ("time l4 --mean-new-tokens 800 --share-at-limit 1", 2,
     "--share-at-limit 1 is out of range; give a number of at least 0 and below 1"),
    ("sweep --gpu l40s --new-tokens-from lengths.csv --max-new-tokens 10,20", 2,
     "--new-tokens-from 'lengths.csv' gives the output lengths; give one --max-new-tokens"),
    ("compare huge", 2,
     "cannot compare 'huge'; give a mode of deepseek-ocr (tiny, small, base, large, gundam,"
     " gundam-m), an architecture with or without a mode (deepseek-ocr,"
     " deepseek-ocr-2:dynamic|small|base, unlimited-ocr:gundam|base|tiny|small|large,"
     " paddleocr-vl, glm-ocr, lightonocr, qwen3-vl, olmocr, got-ocr2)"
     ", sizes like 1024/640"
     " (crops) or 640 (no crops), or a saved report.json"),
    ("compare missing.json", 2, "cannot read report 'missing.json': No such file or directory"),
    ("compare brace.json", 2, "report 'brace.json' is not JSON: Input data was truncated"),
    ("compare bare.json", 2,
     "report 'bare.json' has schema_version None; give a report with schema_version '2', as"
     " dsocr-analyze writes it when it counts the page anew"),
    ("compare early.json", 2,
     "report 'early.json' has schema_version '1'; give a report with schema_version '2', as"
     " dsocr-analyze writes it when it counts the page anew"),
    ("compare unlimited-ocr:gundam --prompt-pages 3 -q --plot p.svg", 2,
     "pages that share a prompt are not cropped; give a mode that crops none, such as base, or"
     " --crop-mode 0"),
    ("compare measured.json", 2,
     "report 'measured.json' is not a report of schema_version '2': it is of the command"
     " 'measure'"),
    ("time cpu --runtime eager", 2,
     "no GPU 'cpu' in the catalogue; dsocr-analyze calibrate measures this machine's"),
    ("compare part.json", 2,
     "report 'part.json' is not a report of schema_version '2': Object missing required field"
     " `metadata`"),
    ("compare tiny --format xml", 2,
     "--format 'xml' is unknown; use table, markdown, json, csv, latex"),
    ("compare tiny --engine guess", 2, "--engine 'guess' is unknown; use trace, analytic"),
    ("compare 20", 2,
     "mode '20' is invalid: base_size 20 is too small; give 64 to 16384 pixels per side"),
    ("compare 3/640", 2,
     "mode '3/640' is invalid: base_size 3 is too small; give 64 to 16384 pixels per side"),
    ("compare 1024/0", 2,
     "mode '1024/0' is invalid: image_size 0 is too small; give 64 to 16384 pixels per side"),
    ("compare nonsense", 2,
     "cannot compare 'nonsense'; give a mode of deepseek-ocr (tiny, small, base, large,"
     " gundam, gundam-m), an architecture with or without a mode (deepseek-ocr,"
     " deepseek-ocr-2:dynamic|small|base, unlimited-ocr:gundam|base|tiny|small|large,"
     " paddleocr-vl, glm-ocr, lightonocr, qwen3-vl, olmocr, got-ocr2)"
     ", sizes like 1024/640"
     " (crops) or 640 (no crops), or a saved report.json"),
    ("compare deepseek-ocr-3:base", 2,
     "cannot compare 'deepseek-ocr-3:base'; did you mean deepseek-ocr-2 or deepseek-ocr? give"
     " a mode of deepseek-ocr (tiny, small, base, large, gundam, gundam-m), an architecture"
     " with or without a mode (deepseek-ocr, deepseek-ocr-2:dynamic|small|base,"
     " unlimited-ocr:gundam|base|tiny|small|large,"
     " paddleocr-vl, glm-ocr, lightonocr, qwen3-vl, olmocr, got-ocr2)"
     ", sizes like 1024/640 (crops) or 640 (no crops), or a saved"
     " report.json"),
    ("compare dynamic", 2,
     "cannot compare 'dynamic'; give a mode of deepseek-ocr (tiny, small, base, large,"
     " gundam, gundam-m), an architecture with or without a mode (deepseek-ocr,"
     " deepseek-ocr-2:dynamic|small|base, unlimited-ocr:gundam|base|tiny|small|large,"
     " paddleocr-vl, glm-ocr, lightonocr, qwen3-vl, olmocr, got-ocr2)"
     ", sizes like 1024/640"
     " (crops) or 640 (no crops), or a saved report.json"),
    ("compare gundam --arch deepseek-ocr-2", 2,
     "cannot compare 'gundam'; give a mode of deepseek-ocr-2 (dynamic, small, base), an"
     " architecture with or without a mode (deepseek-ocr-2,"
     " deepseek-ocr:tiny|small|base|large|gundam|gundam-m,"
     " unlimited-ocr:gundam|base|tiny|small|large,"
     " paddleocr-vl, glm-ocr, lightonocr, qwen3-vl, olmocr, got-ocr2), sizes like 1024/640 (crops)"
     " or 640"
     " (no crops), or a saved report.json"),
    ("compare deepseek-ocr-2:gundam", 2,
     "cannot compare 'deepseek-ocr-2:gundam': deepseek-ocr-2 has no mode 'gundam'; give"
     " dynamic, small, base, or sizes like 1024/640 (crops) or 640 (no crops)"),
    ("compare deepseek-ocr:", 2,
     "cannot compare 'deepseek-ocr:': deepseek-ocr has no mode ''; give tiny, small, base,"
     " large, gundam, gundam-m, or sizes like 1024/640 (crops) or 640 (no crops)"),
    ("compare deepseek-ocr-2:640", 2,
     "cannot compare 'deepseek-ocr-2:640': mode '640' is invalid: base_size 640 is not"
     " supported: the encoder has no queries for the 100 tokens of such a view; give 768 or"
     " 1024"),
    ("compare deepseek-ocr:3/640", 2,
     "cannot compare 'deepseek-ocr:3/640': mode '3/640' is invalid: base_size 3 is too small;"
     " give 64 to 16384 pixels per side"),
    ("compare deepseek-ocr-2 --mode gundam", 2,
     "deepseek-ocr-2: no mode 'gundam'; give one of dynamic, small, base, or sizes like"
     " 1024/640 (crops) or 640 (no crops)"),
    ("compare deepseek-ocr:base --mode tiny", 2,
     "'deepseek-ocr:base' already names a mode; give it or --mode tiny, not both"),
    ("compare base --mode tiny", 2,
     "'base' already names a mode; give it or --mode tiny, not both"),
    ("compare deepseek-ocr --arch deepseek-ocr-2", 2,
     "--arch deepseek-ocr-2 is not compared with anything; name a mode without an"
     " architecture, or leave it out"),
    ("compare deepseek-ocr --config two.json", 2,
     "--config two.json is not compared with anything; name a mode without an architecture,"
     " or leave it out"),
    ("compare saved.json --config one.json", 2,
     "--config one.json is not compared with anything; name a mode without an architecture,"
     " or leave it out"),
    ("compare saved.json --mode tiny", 2,
     "--mode has no effect on saved reports; leave it out"),
    ("compare saved.json --dtype float16,float32", 2,
     "--dtype has no effect on saved reports; leave it out"),
    ("compare saved.json --gpu l4", 2, "--gpu has no effect on saved reports; leave it out"),
    ("compare saved.json --page a3", 2, "--page has no effect on saved reports; leave it out"),
    ("compare dynamic --config one.json --config two.json", 2,
     "cannot compare 'dynamic'; give a mode of deepseek-ocr (tiny, small, base, large,"
     " gundam, gundam-m), an architecture with or without a mode (deepseek-ocr,"
     " deepseek-ocr-2:dynamic|small|base, unlimited-ocr:gundam|base|tiny|small|large,"
     " paddleocr-vl, glm-ocr, lightonocr, qwen3-vl, olmocr, got-ocr2)"
     ", sizes like 1024/640"
     " (crops) or 640 (no crops), or a saved report.json"),
    ("compare --config one.json --config ./one.json", 2,
     "--config one.json is given twice; give every file once"),
    ("compare --config one.json --config none.json", 2,
     "no config at 'none.json'; a model directory contains config.json"),
    ("compare --config one.json --arch deepseek-ocr-2", 2,
     "--arch deepseek-ocr-2 contradicts --config one.json, which is of deepseek-ocr; give one"
     " of them"),
    ("compare tiny --use-flash-attn 0,2", 2, "--use-flash-attn '2' is invalid; give 0, 1 or 0,1"),
    ("compare tiny --dtype bfloat16,int3", 2,
     "--dtype 'int3' is unknown; use bfloat16, float16, float32"),
    ("compare tiny --dtype bfloat16,", 2,
     "--dtype 'bfloat16,' has an empty item; give names between commas"),
    ("compare tiny --sliding-window 0", 2,
     "--sliding-window 0 has no effect: nothing that is compared has a sliding window; leave"
     " it out"),
    ("compare tiny --quantity bytes", 2, "--quantity bytes is for a picture; give --plot FILE too"),
    ("compare tiny --plot a.svg --quantity seconds", 2,
     "--quantity seconds needs predicted seconds; give --gpu too"),
    ("compare saved.json --plot a.svg --quantity seconds", 2,
     "--quantity seconds needs predicted seconds, and 'saved.json' has none; save it with"
     " --gpu, or leave it out"),
    ("--engine analytic --html gone/p.html", 74,
     "cannot write 'gone/p.html': no folder 'gone'; create it"),
    ("compare --html .", 74, "cannot write '.': it is a folder; give a file's name"),
    ("compare --plot p.gif", 2,
     "cannot tell the format of picture 'p.gif'; give a name that ends in .png or .svg"),
    ("compare --plot gone/p.png", 74, "cannot write 'gone/p.png': no folder 'gone'; create it"),
    ("compare --plot p.png --quantity joules", 2,
     "--quantity 'joules' is unknown; use flops, bytes, seconds"),
    ("compare --plot p.png --mode 64:1600:64", 2,
     "a plot of 25 bars is not readable; compare fewer, for at most 24, or draw none"),
    ("compare tiny base gundam --plot p.png --gpu h100,a100,l4,l40s,h200 --runtime eager,serving"
     " --quantity seconds", 2,
     "a plot of 30 bars is not readable; compare fewer, for at most 24, or draw none"),
    ("compare saved tiny", 2,
     "cannot compare 'saved': it is a folder; did you mean its report,"
     " saved/static_compute.json?"),
    ("compare model tiny", 2,
     "cannot compare 'model': it is a folder; compare the modes of this model with --model"
     " model, models with --config model/config.json (once per model), or saved reports:"
     " dsocr-analyze --model model --output FOLDER writes FOLDER/static_compute.json"),
    ("compare code.json tiny", 2,
     "cannot compare 'code.json': it is a folder; give a saved report, such as"
     " static_compute.json, or --model DIR to compare its modes"),
    ("fit t4", 2, "T4 has no bfloat16; use --dtype float16"),
    ("fit v100-sxm-16gb --dtype fp16 --use-flash-attn 1", 2,
     "V100 SXM 16 GB has no FlashAttention-2, which needs compute capability 8.0, not 7.0;"
     " use --use-flash-attn 0"),
    ("fit a100 t4 --use-flash-attn 1", 2,
     "T4 has no bfloat16 and no FlashAttention-2, which needs compute capability 8.0, not"
     " 7.5; use --dtype float16 and --use-flash-attn 0"),
    ("fit h100 --dtype fp32 --use-flash-attn 1", 2,
     "H100 SXM has no FlashAttention-2 in float32, which computes in 16 bits; use"
     " --use-flash-attn 0"),
    ("fit h100 t4", 2, "T4 has no bfloat16; use --dtype float16"),
    ("time v100 --dtype fp16 --use-flash-attn 1 --runtime eager", 2,
     "V100 SXM 32 GB has no FlashAttention-2, which needs compute capability 8.0, not 7.0;"
     " use --use-flash-attn 0"),
    ("sweep --gpu v100 --runtime eager --dtype fp16 --use-flash-attn 1 --output costs.csv"
     " --yes", 2,
     "V100 SXM 32 GB has no FlashAttention-2, which needs compute capability 8.0, not 7.0;"
     " use --use-flash-attn 0"),
    ("advise --page a4@200 --page-dpi 150", 2,
     "--page a4@200 is a paper at 200 dpi; leave out --page-dpi 150, or give a4@150"),
    ("advise --page 100x100 --minimum-dpi 9", 2,
     "--minimum-dpi needs the --page's own resolution, which pixels alone do not give; give"
     " --page-dpi, or a paper like --page a4@200"),
    ("advise --page-dpi x", 2, "--page-dpi 'x' is invalid; give a number above 0, like 150"),
    ("advise --page 9x9 --page-dpi 100001", 2,
     "--page-dpi 100001 is out of range; give 1 to 100000"),
    ("advise --minimum-dpi 0", 2,
     "--minimum-dpi '0' is invalid; give a number above 0, like 150"),
    ("advise --minimum-dpi -3", 2,
     "--minimum-dpi '-3' is invalid; give a number above 0, like 150"),
    ("advise --maximum-compression nan", 2,
     "--maximum-compression 'nan' is invalid; give a number above 0, like 150"),
    ("advise --mode huge", 2,
     "no mode 'huge'; give one of tiny, small, base, large, gundam, gundam-m, or sizes like"
     " 1024/640 (crops) or 640 (no crops)"),
    ("advise --page-text-tokens 0", 2,
     "--page-text-tokens 0 is out of range; give 1 to 1048576: numbers and ranges like"
     " 10,100:1000:100"),
    ("advise --page-text-tokens 1:99", 2, "--page-text-tokens 1:99 has 99 values; give at most 12"),
    ("advise --format xml", 2, "--format 'xml' is unknown; use table, markdown, json, csv, latex"),
    ("advise --price 2", 2, "--price is for predicted seconds; give --gpu too, or leave it out"),
    ("advise --kind newspapre", 2,
     "--kind 'newspapre' is unknown; did you mean newspaper? give book, slides, financial"
     " report, textbook, exam paper, magazine, academic papers, notes, newspaper"),
    ("advise --max-new-tokens 0 --page-text-tokens 9", 2,
     "--max-new-tokens 0 is too small; give 1 to 1048576 tokens"),
    ("advise --quiet", 2,
     "--quiet leaves nothing to show; give --minimum-dpi, --maximum-compression or --json"
     " too, or leave out --quiet"),
    ("advise --page a4 --image cut.png", 2, "give --page a4 or --image cut.png, not both"),
    ("docs --arch deepseek-ocr", 2, "pages for another model need a folder: give --output DIR"),
    ("trust", 2, "DIR is missing; see dsocr-analyze trust --help"),
    ("docs --check --output here", 2, "--check is of the pages in place; leave out --output here"),
    ("time l4 --keep 0", 2, "--keep 0 is for --from-benchmark FILE; leave it out"),
    ("time l4 --new-tokens-from lengths.csv --mean-new-tokens 9", 2,
     "--new-tokens-from gives the output lengths; leave out --mean-new-tokens and"
     " --share-at-limit"),
    ("--price 2", 2, "--price is for predicted seconds; give --gpu too, or leave it out"),
    ("archive pages.csv --gpu l4 --corrections 0 --server-version 0.9", 2,
     "--server-version 0.9 selects the benchmarks that correct, and --corrections 0 turns all"
     " of them off; leave one out"),
    ("devices --forget all", 2, "--forget all needs named GPUs; name one or more"),
    ("devices --forget x", 2,
     "--forget x: no benchmark with that id is kept; dsocr-analyze devices --corrections"
     " lists those that are"),
    ("check", 2,
     "no budgets here: neither dsocr-budgets.toml nor [tool.dsocr-analyze.check] in"
     " pyproject.toml; --update creates a file, --budgets FILE names another"),
    ("check --budgets pyproject.toml", 2,
     "cannot read budgets 'pyproject.toml': No such file or directory"),
    ("check --budgets gone.toml", 2, "cannot read budgets 'gone.toml': No such file or directory"),
    ("calibrate --seconds 1", 2, "--seconds 1 is out of range; give 20 to 3600"),
    ("fit l4 --debug --sliding-window 1", 2,
     "--sliding-window 1 is not supported: deepseek-ocr has no sliding window; leave it out"),
    ("--debug fit l4 --batch-size big", 2,
     "--batch-size 'big' is invalid; give a whole number of pages; see dsocr-analyze fit"
     " --help"),
    ("--strict fit l4", 2, "--strict before fit has no effect; give it after the command"),
]  # fmt: skip


COMMANDS = dict.fromkeys("" if line[0] == "-" else line.split()[0] for line, *_ in REFUSED)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("refused")
    for name, content in FILES.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(content)
    pq.write_table(pa.table({"width": [True], "height": [1]}), folder / "bools.parquet")
    table = pa.table({"width": range(1, 9999), "height": range(1, 9999)})
    pq.write_table(table, folder / "torn.parquet")
    content = (folder / "torn.parquet").read_bytes()
    (folder / "torn.parquet").write_bytes(content[:4] + bytes(1996) + content[2000:])
    report = analyze(mode="tiny", engine="analytic")
    (folder / "saved.json").write_text(dump_json(report), encoding="utf-8")
    return folder


def contents():
    return {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()}


@pytest.mark.parametrize("command", COMMANDS)
def test_what_is_not_possible_is_said_in_one_line_and_changes_no_file(
    capsys, monkeypatch, folder, command
):
    monkeypatch.chdir(folder)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(folder / "config"))
    monkeypatch.setattr("sys.stdin", io.StringIO())
    before = contents()
    wanted = {
        line: (code, "", f"dsocr-analyze: {said}\n")
        for line, code, said in REFUSED
        if line.startswith(command or "-")
    }
    assert {line: run(capsys, *shlex.split(line)) for line in wanted} == wanted
    assert contents() == before
