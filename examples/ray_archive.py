"""What an archive of pages costs, counted by Ray Data on all cores or machines.

    pip install 'dsocr-analyze[ray]'
    python examples/ray_archive.py pages.parquet

`count_pages` goes to `map_batches` as it is: it takes Arrow data and returns Arrow data.
"""

from __future__ import annotations

import sys

import pyarrow as pa
import pyarrow.compute as pc
import ray

from dsocr_analyze.archive import count_pages


def archive_totals(pages: ray.data.Dataset, mode: str = "gundam") -> dict[str, int]:
    """Exact totals over all pages.

    Args:
        pages: A dataset with columns `width` and `height`.
        mode: A mode of the model.

    Returns:
        How many rows describe a page, how many do not, and the pages' FLOPs and bytes. The sums
        are Python integers: those of an archive may not fit 64 bits.
    """
    counted = pages.map_batches(
        count_pages, batch_format="pyarrow", batch_size=65_536, fn_kwargs={"mode": mode}
    )
    totals = dict.fromkeys(("pages", "malformed", "page_flops", "page_bytes_read"), 0)
    table: pa.Table
    for table in counted.iter_batches(batch_format="pyarrow", batch_size=65_536):
        malformed = pc.count(table["problem"]).as_py()
        totals["malformed"] += malformed
        totals["pages"] += table.num_rows - malformed
        for name in ("page_flops", "page_bytes_read"):
            totals[name] += sum(value for value in table[name].to_pylist() if value is not None)
    return totals


if __name__ == "__main__":
    ray.init(include_dashboard=False)
    for name, value in archive_totals(ray.data.read_parquet(sys.argv[1])).items():
        sys.stdout.write(f"{name:>16} {value:,}\n")
