"""The ``:::MLLOG`` format: a line-atomic, hash-chained writer and a bounded, strict reader."""
