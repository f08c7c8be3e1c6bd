#!/usr/bin/env python3
"""parquet.py IN.parquet... OUT.jsonl - rows of parquet files as JSON lines, a few at a time.

Debian has no library that reads parquet from C, so that kvlab does not.  This wants pyarrow (pip install pyarrow).
"""
import json
import sys

import pyarrow.parquet


def plain(value):
    """What JSON has no type for: bytes are text, everything else (dates, decimals) is as it prints."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def main():
    if len(sys.argv) < 3 or sys.argv[-1].endswith(".parquet"):
        sys.exit("usage: parquet.py IN.parquet... OUT.jsonl")
    n = 0
    with open(sys.argv[-1], "w", encoding="utf-8") as out:
        for path in sys.argv[1:-1]:
            for batch in pyarrow.parquet.ParquetFile(path).iter_batches(batch_size=16):
                for row in batch.to_pylist():
                    out.write(json.dumps(row, ensure_ascii=False, default=plain) + "\n")
                    n += 1
    print(f"{sys.argv[-1]}: {n} rows")


if __name__ == "__main__":
    main()
