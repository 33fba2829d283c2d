"""Preparation of train and evaluation sets into one parquet schema, the one that verl reads."""
