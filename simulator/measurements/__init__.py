"""Measurements, published or one's own, read into the terms of this package: tables, traces, logs of nccl-tests."""
