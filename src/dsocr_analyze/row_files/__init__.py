"""CSV and Parquet files of rows, read in batches, whatever a row is about.

A caller says what the rows are and which columns it wants (`kind`); a file is opened (`source`)
and its columns become whole numbers (`whole_numbers`). numpy and pyarrow are imported by what
needs them.
"""
