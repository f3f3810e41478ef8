"""Reads every table under a folder with pyarrow and tells what it found: cold_table.py FOLDER"""

import hashlib
import json
import pathlib
import sys

import pyarrow.parquet as parquet

out = {"objects": [], "records": [], "values": {}}
for manifest in sorted(pathlib.Path(sys.argv[1]).rglob("*.json")):
    told = json.loads(manifest.read_text())
    path = manifest.with_suffix(".parquet")
    file = parquet.ParquetFile(path)
    table = file.read()
    group = file.metadata.row_group(0)
    column = {group.column(i).path_in_schema: group.column(i) for i in range(group.num_columns)}
    arrived = [at.timestamp() * 1000 for at in table["received_at"].to_pylist()]
    first = [record for record, part in zip(table["record"].to_pylist(), table["part"].to_pylist()) if part == 0]
    out["objects"].append(
        {
            "lane": told["lane"],
            "first": told["first_id"],
            "last": told["last_id"],
            "whole": hashlib.sha256(path.read_bytes()).hexdigest() == told["sha256"]
            and path.stat().st_size == told["bytes"]
            and table.num_rows == told["rows"]
            and round(min(arrived)) == told["min_ms"]
            and round(max(arrived)) == told["max_ms"]
            and [first[0], first[-1]] == [told["first_id"], told["last_id"]]
            and first == sorted(set(first)),
            "codec": column["metric"].compression,
            "dictionary": "RLE_DICTIONARY" in column["metric"].encodings,
        }
    )
    out["records"] += first
    for row in table.select(["device", "metric", "value_int", "class"]).to_pylist():
        if row["metric"] == "n" and row["value_int"]:
            out["values"].setdefault(row["device"], []).append(row["value_int"])
json.dump(out, sys.stdout)
