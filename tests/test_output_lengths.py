"""Lengths of outputs: the distribution, the longest of a batch, and files of lengths."""

import gzip
import itertools
import math
from fractions import Fraction

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command_line import run
from hypothesis import given
from hypothesis import strategies as st

from dsocr_analyze.errors import WorkloadError
from dsocr_analyze.timing.length_files import read_lengths
from dsocr_analyze.timing.output_lengths import OutputLengths
from dsocr_analyze.workload import LARGEST_COUNT

# The distribution --------------------------------------------------------------------------------

COUNTS = st.dictionaries(st.integers(1, 200), st.integers(1, 9), min_size=1, max_size=5)
"""Pages by tokens."""


def test_a_fixed_length_is_its_own_mean_and_the_longest_of_every_batch():
    lengths = OutputLengths.fixed(900)
    assert (lengths.lengths, lengths.shares) == ((900,), (1.0,))
    assert (lengths.mean, lengths.longest) == (900, 900)
    assert [lengths.expected_longest(n) for n in (1, 2, LARGEST_COUNT)] == [900, 900, 900]


@pytest.mark.parametrize(
    ("lengths", "shares", "mean", "longest_of"),
    [
        # A coin: of two throws one is 200 in 3 of 4 cases, of three in 7 of 8.
        ((100, 200), (0.5, 0.5), 150, {1: 150, 2: 175, 3: 187.5}),
        # Three of four pages are short: both are with 9/16.
        ((10, 26), (0.75, 0.25), 14, {1: 14, 2: 10 * 9 / 16 + 26 * 7 / 16}),
        # A die: of two throws the larger is 1 once, 2 thrice, ... 6 eleven times of 36.
        ((1, 2, 3, 4, 5, 6), (1 / 6,) * 6, 3.5, {2: 161 / 36, 3: 119 / 24}),
    ],
)
def test_the_longest_of_a_batch_worked_out_by_hand(lengths, shares, mean, longest_of):
    distribution = OutputLengths(lengths, shares)
    assert distribution.mean == pytest.approx(mean, rel=1e-14)
    assert distribution.longest == lengths[-1]
    for batch, longest in longest_of.items():
        assert distribution.expected_longest(batch) == pytest.approx(longest, rel=1e-14)


@pytest.mark.exhaustive
@given(COUNTS, st.integers(1, 4))
def test_the_longest_of_a_batch_is_that_of_all_batches_there_are(pages, batch):
    total = Fraction(sum(pages.values()))
    longest = sum(
        max(drawn) * math.prod(Fraction(pages[length]) / total for length in drawn)
        for drawn in itertools.product(pages, repeat=batch)
    )
    found = OutputLengths.of_counts(pages).expected_longest(batch)
    assert found == pytest.approx(float(longest), rel=1e-12)


@given(COUNTS)
def test_a_batch_of_one_has_the_mean_and_larger_ones_are_longer_up_to_the_longest(pages):
    lengths = OutputLengths.of_counts(pages)
    found = [lengths.expected_longest(n) for n in (1, 2, 3, 10, 100, 10_000, LARGEST_COUNT)]
    assert found[0] == pytest.approx(lengths.mean, rel=1e-12)
    assert found == sorted(found)
    assert found[-1] <= lengths.longest
    assert found[-1] == pytest.approx(lengths.longest, rel=1e-9)


def test_the_longest_of_a_batch_is_what_drawing_says():
    lengths = OutputLengths((300, 900, 1100, 8192), (0.2, 0.5, 0.27, 0.03))
    drawn = np.random.default_rng(5).choice(lengths.lengths, (20_000, 16), p=lengths.shares)
    longest = drawn.max(axis=1)
    error = longest.std() / math.sqrt(len(longest))
    assert lengths.expected_longest(16) == pytest.approx(longest.mean(), abs=4 * error)


def test_a_share_too_small_to_change_the_others_still_counts():
    # One page in 1e12, 1,000 tokens longer; a million pages have it with a millionth.
    lengths = OutputLengths((1, 1001), (1 - 1e-12, 1e-12))
    assert lengths.expected_longest(10**6) - 1 == pytest.approx(1000 * 1e-6, rel=1e-5)
    # And the other way round: the short page is so rare that 1 less its share is 1.
    lengths = OutputLengths((1, 1001), (1e-20, 1.0))
    assert lengths.expected_longest(1) == 1001


def test_some_pages_at_the_limit_and_the_others_around_their_mean():
    lengths = OutputLengths.mean_and_limit(900, 8192, 0.25)
    assert (lengths.lengths, lengths.shares) == ((900, 8192), (0.75, 0.25))
    assert lengths.mean == 0.25 * 8192 + 0.75 * 900
    between = OutputLengths.mean_and_limit(900.25, 8192, 0.5)
    assert between.lengths == (900, 901, 8192)
    assert between.shares == (0.375, 0.125, 0.5)
    assert between.mean == 0.5 * 8192 + 0.5 * 900.25


def test_without_pages_at_the_limit_there_is_only_the_mean():
    assert OutputLengths.mean_and_limit(900, 8192, 0) == OutputLengths.fixed(900)
    assert OutputLengths.mean_and_limit(8191, 8192, 0) == OutputLengths.fixed(8191)
    assert OutputLengths.mean_and_limit(1, 2, 0.5) == OutputLengths((1, 2), (0.5, 0.5))


@given(
    st.integers(2, LARGEST_COUNT).flatmap(
        lambda limit: st.tuples(st.floats(1, limit - 1), st.just(limit))
    ),
    st.floats(0, 1, exclude_max=True),
)
def test_the_mean_over_all_pages_weighs_the_limit_with_its_share(mean_and_limit, share):
    mean, limit = mean_and_limit
    lengths = OutputLengths.mean_and_limit(mean, limit, share)
    assert lengths.mean == pytest.approx(share * limit + (1 - share) * mean, rel=1e-9)
    assert math.fsum(lengths.shares) == pytest.approx(1, abs=1e-12)


def test_counted_pages_are_sorted_and_lengths_without_pages_left_out():
    lengths = OutputLengths.of_counts({30: 1, 10: 3, 20: 0})
    assert lengths == OutputLengths((10, 30), (0.75, 0.25))


@pytest.mark.parametrize(
    ("lengths", "shares", "message"),
    [
        ((), (), "0 lengths have 0 shares"),
        ((1, 2), (1.0,), "2 lengths have 1 shares"),
        ((0,), (1.0,), "a length of 0 is invalid; give a whole number from 1 to 1048576"),
        ((-5,), (1.0,), "a length of -5"),
        ((1.0,), (1.0,), "a length of 1.0"),
        ((True,), (1.0,), "a length of True"),
        ((LARGEST_COUNT + 1,), (1.0,), "a length of 1048577"),
        ((2, 1), (0.5, 0.5), "lengths have 1 after 2"),
        ((2, 2), (0.5, 0.5), "lengths have 2 after 2"),
        ((1, 2), (1.0, 0.0), "a share is 0.0"),
        ((1, 2), (1.5, -0.5), "a share is 1.5"),
        ((1,), (math.nan,), "a share is nan"),
        ((1, 2), (0.5, 0.4), "shares add up to 0.9"),
        ((1, 2), (0.6, 0.5), "shares add up to 1.1"),
    ],
)
def test_what_is_no_distribution_is_refused(lengths, shares, message):
    with pytest.raises(WorkloadError, match=message):
        OutputLengths(lengths, shares)


@pytest.mark.parametrize(
    ("mean", "limit", "share", "message"),
    [
        (0.5, 8192, 0.1, "mean 0.5 is out of range: .* from 1 to 8191 tokens"),
        (8191.5, 8192, 0.1, "mean 8191.5"),
        (math.nan, 8192, 0.1, "mean nan"),
        (math.inf, 8192, 0.1, "mean inf"),
        (1, 1, 0.1, "limit 1 is invalid; give a whole number from 2"),
        (1, 8192.0, 0.1, "limit 8192.0"),
        (1, LARGEST_COUNT + 1, 0.1, "limit 1048577"),
        (900, 8192, -0.1, "share_at_limit -0.1"),
        (900, 8192, 1, "share_at_limit 1 is out of range; give a number of at least 0 and below 1"),
        (900, 8192, math.nan, "share_at_limit nan"),
    ],
)
def test_a_mean_and_a_limit_that_do_not_go_together_are_refused(mean, limit, share, message):
    with pytest.raises(WorkloadError, match=message):
        OutputLengths.mean_and_limit(mean, limit, share)


@pytest.mark.parametrize("batch", [0, -1, 1.5, True, LARGEST_COUNT + 1])
def test_a_batch_that_is_no_number_of_pages_is_refused(batch):
    with pytest.raises(WorkloadError, match=r"batch .* is invalid"):
        OutputLengths.fixed(5).expected_longest(batch)


@pytest.mark.parametrize(
    ("pages", "message"),
    [
        ({}, "no page is counted"),
        ({5: 0}, "no page is counted"),
        ({5: 2, 6: -1}, "-1 pages of 6 tokens"),
        ({0: 1}, "a length of 0"),
    ],
)
def test_counts_that_are_no_pages_are_refused(pages, message):
    with pytest.raises(WorkloadError, match=message):
        OutputLengths.of_counts(pages)


# Files -------------------------------------------------------------------------------------------

FOUR_PAGES = OutputLengths((10, 30), (0.75, 0.25))


@pytest.mark.parametrize(
    "content",
    [
        b"new_tokens\n10\n30\n10\n10\n",
        b"tokens generated\n10\n30\n10\n10",
        b"\xef\xbb\xbfnew_tokens\r\n10\r\n30\r\n\r\n10\r\n10\r\n",
        b'page,new_tokens\n"a, b",10\nc,30.0\nd,"10"\ne, 10 \n',
        b"new_tokens,9\n10,x\n30,y\n10,\n10,z\n",
    ],
)
def test_a_csv_file_has_the_column_new_tokens_or_a_single_one(tmp_path, content):
    (tmp_path / "lengths.csv").write_bytes(content)
    assert read_lengths(tmp_path / "lengths.csv") == FOUR_PAGES
    (tmp_path / "lengths.csv.gz").write_bytes(gzip.compress(content))
    assert read_lengths(tmp_path / "lengths.csv.gz") == FOUR_PAGES


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_columns_that_are_not_read_are_named(capsys, tmp_path, suffix):
    path = tmp_path / f"lengths.{suffix}"
    if suffix == "csv":
        path.write_text("page,new_tokens\na,10\n")
    else:
        pq.write_table(pa.table({"page": ["a"], "new_tokens": [10]}), path)
    found = []
    read_lengths(path, warn=found.append)
    assert found == [
        f"columns of {str(path)!r} that are not read: 'page'; each row counts as the output of one"
        " page"
    ]
    (tmp_path / "only.csv").write_text("anything\n10\n")
    read_lengths(tmp_path / "only.csv", warn=found.append)
    assert len(found) == 1
    for command in (("time", "l4"), ("archive", tmp_path / "pages.csv", "--gpu", "l4")):
        (tmp_path / "pages.csv").write_text("width,height\n640,640\n")
        code, _, err = run(capsys, *command, "--new-tokens-from", path, "--strict")
        assert code == 3
        assert f"warning: {found[0]}\n" in err


@pytest.mark.parametrize(
    "table",
    [
        pa.table({"new_tokens": pa.array([10, 30, 10, 10], pa.int8())}),
        pa.table({"anything": [10.0, 30.0, 10.0, 10.0]}),
        pa.table({"new_tokens": ["10", "30", "10", "10"], "page": [1, 2, 3, 4]}),
    ],
)
def test_a_parquet_file_has_the_column_new_tokens_or_a_single_one(tmp_path, table):
    pq.write_table(table, tmp_path / "lengths")
    assert read_lengths(tmp_path / "lengths") == FOUR_PAGES


def test_a_file_is_read_in_parts_that_add_up(tmp_path, monkeypatch):
    monkeypatch.setattr("dsocr_analyze.row_files._BLOCK_BYTES", 1000)
    monkeypatch.setattr("dsocr_analyze.row_files._BATCH_ROWS", 300)
    tokens = np.random.default_rng(3).integers(1, 1500, 5000)
    (tmp_path / "lengths.csv").write_text("new_tokens\n" + "".join(f"{n}\n" for n in tokens))
    pq.write_table(pa.table({"new_tokens": tokens}), tmp_path / "lengths.parquet")
    from_csv = read_lengths(tmp_path / "lengths.csv")
    assert from_csv == read_lengths(tmp_path / "lengths.parquet")
    assert from_csv.lengths == tuple(np.unique(tokens).tolist())
    assert from_csv.mean == pytest.approx(tokens.mean(), rel=1e-12)


def test_the_largest_length_can_be_read(tmp_path):
    (tmp_path / "lengths.csv").write_text(f"new_tokens\n{LARGEST_COUNT}\n")
    assert read_lengths(tmp_path / "lengths.csv") == OutputLengths.fixed(LARGEST_COUNT)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "lengths.csv' as a list of output lengths: it is empty; give a Parquet or CSV file"),
        (b"new_tokens\n", "has no rows; give a Parquet or CSV file with a column new_tokens"),
        (
            b"512\n600\n",
            "only column of .* is called '512', which is a number; start .* new_tokens",
        ),
        (b"a,b\n1,2\n", r"no column 'new_tokens' \(it has 'a', 'b'\)"),
        (b"a,b,c,d,e,f,g,h,i,j\n", "'h' and 2 more"),
        (b"new_tokens,new_tokens\n1,2\n", "2 columns 'new_tokens'; give one"),
        (b"new_tokens\n1\nabc\nx\n", "row 2 of .*: new_tokens b?'abc' is not a whole number"),
        (b"new_tokens\n1\n\n2\n1.5\n", "row 3 of .*1.5' is not a whole number"),
        (b"tokens\n0\n", "row 1 of .*: new_tokens '0' is not from 1 to 1048576"),
        (b"new_tokens\n-3\n", "'-3' is not from 1"),
        (b"new_tokens\n1048577\n", "'1048577' is not from 1 to 1048576"),
        (b'new_tokens\n1\n""\n', "row 2 of .*: new_tokens is missing"),
        (b"new_tokens,page\n1,a\n,b\n", "row 2 of .*: new_tokens is missing"),
        (b"new_tokens\n1\n2,3\n", "row 2 of .*: it has 2 values for 1 columns"),
        (b'new_tokens\n1\n"2\n', "row 2 of .*: a quote is not closed"),
        (b"new_tokens\n1\nx\n2,3\n", "row 2 of .*'x'"),
        (b"new_tokens\n1\n2,3\nx\n", "row 2 of .*: it has 2 values"),
    ],
)
def test_a_csv_file_that_holds_no_lengths_is_refused(tmp_path, content, message):
    (tmp_path / "lengths.csv").write_bytes(content)
    with pytest.raises(WorkloadError, match=message) as raised:
        read_lengths(tmp_path / "lengths.csv")
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (pa.table({"new_tokens": pa.array([], pa.int64())}), "has no rows"),
        (pa.table({"a": [1], "b": [2]}), "no column 'new_tokens'"),
        (pa.table({"new_tokens": [5, None]}), "row 2 of .*: new_tokens is missing"),
        (pa.table({"new_tokens": [5, 6, 0]}), "row 3 of .*: new_tokens 0 is not from 1"),
        (pa.table({"new_tokens": [5.0, 6.5]}), "row 2 of .*: new_tokens 6.5 is not a whole"),
        (pa.table({"new_tokens": [True]}), "column 'new_tokens' holds bool; give whole numbers"),
        (pa.table({"tokens": [[5]]}), "column 'tokens' holds list"),
    ],
)
def test_a_parquet_file_that_holds_no_lengths_is_refused(tmp_path, table, message):
    pq.write_table(table, tmp_path / "lengths.parquet")
    with pytest.raises(WorkloadError, match=message):
        read_lengths(tmp_path / "lengths.parquet")


def test_a_bad_row_has_its_number_in_the_whole_file(tmp_path, monkeypatch):
    monkeypatch.setattr("dsocr_analyze.row_files._BLOCK_BYTES", 8)
    (tmp_path / "lengths.csv").write_text("new_tokens\n" + "7\n" * 50 + "seven\n")
    with pytest.raises(WorkloadError, match=r"row 51 of .*'seven'"):
        read_lengths(tmp_path / "lengths.csv")


def test_what_is_no_file_of_lengths_is_refused(tmp_path):
    with pytest.raises(WorkloadError, match=r"no list of output lengths .*gone"):
        read_lengths(tmp_path / "gone.csv")
    with pytest.raises(WorkloadError, match=r"it is a folder, .*; give a Parquet or CSV"):
        read_lengths(tmp_path)
    (tmp_path / "lengths.parquet").write_text("new_tokens\n1\n")
    with pytest.raises(WorkloadError, match="is not a Parquet file"):
        read_lengths(tmp_path / "lengths.parquet")
    (tmp_path / "lengths.pq").write_bytes(b"PAR1 and nothing more")
    with pytest.raises(WorkloadError, match="cannot read"):
        read_lengths(tmp_path / "lengths.pq")
