"""CSV and Parquet files of any kind of row, read in batches.

A caller defines the kind of rows and the columns it wants (`kind`); a file is opened (`source`)
and its columns are converted to whole numbers (`whole_numbers`). numpy and pyarrow are imported
only by modules that need them.
"""
