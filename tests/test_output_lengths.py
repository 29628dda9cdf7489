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
from hypothesis import given, settings
from hypothesis import strategies as st

from dsocr_analyze.errors import WorkloadError
from dsocr_analyze.timing.assumptions import OutputLengths
from dsocr_analyze.timing.length_files import read_lengths
from dsocr_analyze.workload import LARGEST_COUNT

# The distribution --------------------------------------------------------------------------------

COUNTS = st.dictionaries(st.integers(1, 200), st.integers(1, 9), min_size=1, max_size=5)
"""Pages by tokens."""


near = pytest.approx
LONGEST = [
    # A distribution, its mean, and the longest of so many pages.
    (OutputLengths.fixed(900), 900, {1: 900, 2: 900, LARGEST_COUNT: 900}),
    # A coin: of two throws one is 200 in 3 of 4 cases, of three in 7 of 8.
    (OutputLengths((100, 200), (0.5, 0.5)), 150, {1: 150, 2: 175, 3: 187.5}),
    # Three of four pages are short: both are with 9/16.
    (OutputLengths((10, 26), (0.75, 0.25)), 14, {1: 14, 2: 10 * 9 / 16 + 26 * 7 / 16}),
    # A die: of two throws the larger is 1 once, 2 thrice, ... 6 eleven times of 36.
    (OutputLengths((1, 2, 3, 4, 5, 6), (1 / 6,) * 6), 3.5, {2: 161 / 36, 3: 119 / 24}),
    # One page in 1e12, 1,000 tokens longer; a million pages have it with a millionth.
    (OutputLengths((1, 1001), (1 - 1e-12, 1e-12)), 1 + 1e-9, {10**6: near(1.001, abs=1e-8)}),
    # And the other way round: the short page is so rare that 1 less its share is 1.
    (OutputLengths((1, 1001), (1e-20, 1.0)), 1001, {1: 1001}),
    # Some pages at the limit and the others around their mean, or none there.
    (OutputLengths.mean_and_limit(900, 8192, 0.25), 0.25 * 8192 + 0.75 * 900, {}),
    (OutputLengths.mean_and_limit(900.25, 8192, 0.5), 0.5 * 8192 + 0.5 * 900.25, {}),
]


@pytest.mark.parametrize(("lengths", "mean", "longest_of"), LONGEST)
def test_the_longest_of_a_batch_worked_out_by_hand(lengths, mean, longest_of):
    assert lengths.mean == near(mean, rel=1e-14)
    assert lengths.longest == lengths.lengths[-1]
    for batch, longest in longest_of.items():
        assert near(lengths.expected_longest(batch), rel=1e-14) == longest


EQUAL = [
    (OutputLengths.fixed(900), (900,), (1.0,)),
    (OutputLengths.mean_and_limit(900, 8192, 0.25), (900, 8192), (0.75, 0.25)),
    (OutputLengths.mean_and_limit(900.25, 8192, 0.5), (900, 901, 8192), (0.375, 0.125, 0.5)),
    (OutputLengths.mean_and_limit(900, 8192, 0), (900,), (1.0,)),
    (OutputLengths.mean_and_limit(8191, 8192, 0), (8191,), (1.0,)),
    (OutputLengths.mean_and_limit(1, 2, 0.5), (1, 2), (0.5, 0.5)),
    # Sorted, and without lengths of no page.
    (OutputLengths.of_counts({30: 1, 10: 3, 20: 0}), (10, 30), (0.75, 0.25)),
]


@pytest.mark.parametrize(("made", "lengths", "shares"), EQUAL)
def test_a_distribution_is_made_from_less(made, lengths, shares):
    assert made == OutputLengths(lengths, shares)


@pytest.mark.exhaustive
@given(COUNTS, st.integers(1, 4))
def test_the_longest_of_a_batch_is_that_of_all_batches_there_are(pages, batch):
    total = Fraction(sum(pages.values()))
    longest = sum(
        max(drawn) * math.prod(Fraction(pages[length]) / total for length in drawn)
        for drawn in itertools.product(pages, repeat=batch)
    )
    found = OutputLengths.of_counts(pages).expected_longest(batch)
    assert found == near(float(longest), rel=1e-12)


@settings(max_examples=30)
@given(COUNTS)
def test_a_batch_of_one_has_the_mean_and_larger_ones_are_longer_up_to_the_longest(pages):
    lengths = OutputLengths.of_counts(pages)
    found = [lengths.expected_longest(n) for n in (1, 2, 3, 10, 100, 10_000, LARGEST_COUNT)]
    assert found[0] == near(lengths.mean, rel=1e-12)
    assert found == sorted(found)
    assert found[-1] <= lengths.longest
    assert found[-1] == near(lengths.longest, rel=1e-9)


def test_the_longest_of_a_batch_is_what_drawing_says():
    lengths = OutputLengths((300, 900, 1100, 8192), (0.2, 0.5, 0.27, 0.03))
    drawn = np.random.default_rng(5).choice(lengths.lengths, (20_000, 16), p=lengths.shares)
    longest = drawn.max(axis=1)
    error = longest.std() / math.sqrt(len(longest))
    assert lengths.expected_longest(16) == near(longest.mean(), abs=4 * error)


@settings(max_examples=30)
@given(
    st.integers(2, LARGEST_COUNT).flatmap(
        lambda limit: st.tuples(st.floats(1, limit - 1), st.just(limit))
    ),
    st.floats(0, 1, exclude_max=True),
)
def test_the_mean_over_all_pages_weighs_the_limit_with_its_share(mean_and_limit, share):
    mean, limit = mean_and_limit
    lengths = OutputLengths.mean_and_limit(mean, limit, share)
    assert lengths.mean == near(share * limit + (1 - share) * mean, rel=1e-9)
    assert math.fsum(lengths.shares) == near(1, abs=1e-12)


@pytest.mark.parametrize(
    ("made", "arguments", "message"),
    [
        *((OutputLengths, arguments, message) for *arguments, message in (
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
            ((1, 2), (0.6, 0.5), "shares add up to 1.1"))),
        *((OutputLengths.mean_and_limit, arguments, message) for *arguments, message in (
            (0.5, 8192, 0.1, "mean 0.5 is out of range: .* from 1 to 8191 tokens"),
            (8191.5, 8192, 0.1, "mean 8191.5"),
            (math.nan, 8192, 0.1, "mean nan"),
            (math.inf, 8192, 0.1, "mean inf"),
            (1, 1, 0.1, "limit 1 is invalid; give a whole number from 2"),
            (1, 8192.0, 0.1, "limit 8192.0"),
            (1, LARGEST_COUNT + 1, 0.1, "limit 1048577"),
            (900, 8192, -0.1, "share_at_limit -0.1"),
            (900, 8192, 1, "share_at_limit 1 is out of range; give a number of at least 0 and"),
            (900, 8192, math.nan, "share_at_limit nan"))),
        *((OutputLengths.fixed(5).expected_longest, [batch], "batch .* is invalid")
          for batch in (0, -1, 1.5, True, LARGEST_COUNT + 1)),
        *((OutputLengths.of_counts, [counts], message) for counts, message in (
            ({}, "no page is counted"),
            ({5: 0}, "no page is counted"),
            ({5: 2, 6: -1}, "-1 pages of 6 tokens"),
            ({0: 1}, "a length of 0"))),
    ],
)  # fmt: skip
def test_what_is_no_distribution_is_refused(made, arguments, message):
    with pytest.raises(WorkloadError, match=message):
        made(*arguments)


# Files -------------------------------------------------------------------------------------------

FOUR_PAGES = OutputLengths((10, 30), (0.75, 0.25))


def written(path, content):
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        pq.write_table(content, path)
    return path


CSV_FILES = [
    b"new_tokens\n10\n30\n10\n10\n",
    b"tokens generated\n10\n30\n10\n10",
    b"\xef\xbb\xbfnew_tokens\r\n10\r\n30\r\n\r\n10\r\n10\r\n",
    b'page,new_tokens\n"a, b",10\nc,30.0\nd,"10"\ne, 10 \n',
    b"new_tokens,9\n10,x\n30,y\n10,\n10,z\n",
]
READ = [
    *(("lengths.csv", content, FOUR_PAGES) for content in CSV_FILES),
    *(("lengths.csv.gz", gzip.compress(content), FOUR_PAGES) for content in CSV_FILES),
    ("lengths", pa.table({"new_tokens": pa.array([10, 30, 10, 10], pa.int8())}), FOUR_PAGES),
    ("lengths", pa.table({"anything": [10.0, 30.0, 10.0, 10.0]}), FOUR_PAGES),
    ("lengths", pa.table({"new_tokens": ["10", "30", "10", "10"], "page": [1, 2, 3, 4]}),
     FOUR_PAGES),
    ("lengths.csv", b"new_tokens\n1048576\n", OutputLengths.fixed(LARGEST_COUNT)),
]  # fmt: skip


def test_a_file_has_the_column_new_tokens_or_a_single_one(tmp_path):
    for name, content, expected in READ:
        assert read_lengths(written(tmp_path / name, content)) == expected, content


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("lengths.csv", b"page,new_tokens\na,10\n"),
        ("lengths.parquet", pa.table({"page": ["a"], "new_tokens": [10]})),
    ],
)
def test_columns_that_are_not_read_are_named(capsys, tmp_path, name, content):
    path, found = written(tmp_path / name, content), []
    read_lengths(path, warn=found.append)
    assert found == [
        f"columns of {str(path)!r} that are not read: 'page'; each row counts as the output of one"
        " page"
    ]
    read_lengths(written(tmp_path / "only.csv", b"anything\n10\n"), warn=found.append)
    assert len(found) == 1
    pages = written(tmp_path / "pages.csv", b"width,height\n640,640\n")
    for command in (("time", "l4"), ("archive", pages, "--gpu", "l4")):
        code, _, err = run(capsys, *command, "--new-tokens-from", path, "--strict")
        assert code == 3
        assert f"warning: {found[0]}\n" in err


def test_a_file_is_read_in_parts_that_add_up(tmp_path, monkeypatch):
    monkeypatch.setattr("dsocr_analyze.row_files._BLOCK_BYTES", 1000)
    monkeypatch.setattr("dsocr_analyze.row_files._BATCH_ROWS", 300)
    tokens = np.random.default_rng(3).integers(1, 1500, 5000)
    lines = "".join(f"{each}\n" for each in ("new_tokens", *tokens))
    from_csv = read_lengths(written(tmp_path / "lengths.csv", lines.encode()))
    table = pa.table({"new_tokens": tokens})
    assert from_csv == read_lengths(written(tmp_path / "lengths.parquet", table))
    assert from_csv.lengths == tuple(np.unique(tokens).tolist())
    assert from_csv.mean == near(tokens.mean(), rel=1e-12)
    monkeypatch.setattr("dsocr_analyze.row_files._BLOCK_BYTES", 8)
    bad = written(tmp_path / "bad.csv", b"new_tokens\n" + b"7\n" * 50 + b"seven\n")
    with pytest.raises(WorkloadError, match=r"row 51 of .*'seven'"):
        read_lengths(bad)


REFUSED = [
    *(("lengths.csv", content, message) for content, message in (
        (b"", "lengths.csv' as a list of output lengths: it is empty; give a Parquet or CSV file"),
        (b"new_tokens\n", "has no rows; give a Parquet or CSV file with a column new_tokens"),
        (b"512\n600\n",
         "only column of .* is called '512', which is a number; start .* new_tokens"),
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
        (b"new_tokens\n1\n2,3\nx\n", "row 2 of .*: it has 2 values"))),
    *(("lengths.parquet", content, message) for content, message in (
        (pa.table({"new_tokens": pa.array([], pa.int64())}), "has no rows"),
        (pa.table({"a": [1], "b": [2]}), "no column 'new_tokens'"),
        (pa.table({"new_tokens": [5, None]}), "row 2 of .*: new_tokens is missing"),
        (pa.table({"new_tokens": [5, 6, 0]}), "row 3 of .*: new_tokens 0 is not from 1"),
        (pa.table({"new_tokens": [5.0, 6.5]}), "row 2 of .*: new_tokens 6.5 is not a whole"),
        (pa.table({"new_tokens": [True]}), "column 'new_tokens' holds bool; give whole numbers"),
        (pa.table({"tokens": [[5]]}), "column 'tokens' holds list"),
        (b"new_tokens\n1\n", "is not a Parquet file"))),
    ("lengths.pq", b"PAR1 and nothing more", "cannot read"),
]  # fmt: skip


def test_a_file_that_holds_no_lengths_is_refused(tmp_path):
    for name, content, message in REFUSED:
        path = written(tmp_path / name, content)
        with pytest.raises(WorkloadError, match=message) as raised:
            read_lengths(path)
        assert "\n" not in str(raised.value)
    for path, message in ((tmp_path / "gone.csv", r"no list of output lengths .*gone"),
                          (tmp_path, r"it is a folder, .*; give a Parquet or CSV")):  # fmt: skip
        with pytest.raises(WorkloadError, match=message):
            read_lengths(path)
