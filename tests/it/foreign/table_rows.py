"""Prints rows of a table as JSON, read with pyarrow: table_rows.py FILE"""

import json
import sys

import pyarrow.parquet as parquet

columns = ["record", "part", "class", "device", "metric", "value_int"]
json.dump(parquet.read_table(sys.argv[1], columns=columns).to_pylist(), sys.stdout)
