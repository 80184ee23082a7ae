"""Measurements, published or of users, read into the terms of this package: tables, traces, and logs of nccl-tests."""
