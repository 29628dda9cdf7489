"""An archive of ten million page sizes: seconds and memory of the whole command.

    python benchmarks/bench_archive.py

Writes Parquet files of random pages to a temporary folder and runs `dsocr-analyze archive` on each
in a process of its own: one with sizes only, one where every page has its own text and new tokens
as well. Prints one line each; exits with 1 where one is too slow or too large.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from conditions import print_environment

PAGES = 10_000_000
ROWS_A_GROUP = 1_000_000
TARGET_SECONDS = 15.0
TARGET_MIB = 1024.0

COMMAND = """
import resource, sys, time
start = time.perf_counter()
from dsocr_analyze.cli import main
code = main(["archive", sys.argv[1]])
seconds = time.perf_counter() - start
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(code, seconds, peak / (1 << 20 if sys.platform == "darwin" else 1 << 10))
"""


def write_archive(path: Path, *, with_lengths: bool) -> None:
    random = np.random.default_rng(20240715)
    writer = None
    for _ in range(PAGES // ROWS_A_GROUP):
        columns = {
            "width": random.integers(300, 5000, ROWS_A_GROUP, dtype=np.int32),
            "height": random.integers(300, 5000, ROWS_A_GROUP, dtype=np.int32),
        }
        if with_lengths:
            columns["text_tokens"] = random.integers(5, 500, ROWS_A_GROUP, dtype=np.int32)
            columns["max_new_tokens"] = random.integers(1, 4000, ROWS_A_GROUP, dtype=np.int32)
        table = pa.table(columns)
        writer = writer or pq.ParquetWriter(path, table.schema)
        writer.write_table(table)
    if writer is not None:
        writer.close()


def measured(path: Path) -> tuple[int, float, float]:
    """Exit code, seconds and peak MiB of the command on a list of pages."""
    process = [sys.executable, "-c", COMMAND, str(path)]
    output = subprocess.run(process, stdout=subprocess.PIPE, text=True, check=True).stdout
    code, seconds, peak = output.split()[-3:]
    return int(code), float(seconds), float(peak)


def main() -> int:
    print_environment()
    all_met = True
    with tempfile.TemporaryDirectory() as folder:
        for what, with_lengths in (("sizes", False), ("sizes and lengths", True)):
            path = Path(folder) / "pages.parquet"
            write_archive(path, with_lengths=with_lengths)
            code, seconds, peak = measured(path)
            met = code == 0 and seconds < TARGET_SECONDS and peak < TARGET_MIB
            all_met &= met
            print(
                f"archive: {PAGES / 1e6:.0f} million page {what} in {seconds:.1f} s and "
                f"{peak:.0f} MiB (target: below {TARGET_SECONDS:.0f} s and {TARGET_MIB:.0f} MiB) "
                f"{'ok' if met else 'MISSED'}"
            )
    return 0 if all_met else 1


if __name__ == "__main__":
    sys.exit(main())
