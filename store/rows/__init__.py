"""Rows in files, Parquet and journals: put in order, written, checked, replaced."""
