"""Kinds of fields that several schemas have."""

from __future__ import annotations

from typing import Annotated

from ...units import BYTES, BYTES_OR_NONE, BYTES_PER_SECOND, FLOP_PER_SECOND, HERTZ, LATENCY, SECONDS, WATTS
from .strict import Field, quantity

LEAST_FACTOR = 0.001

Degree = Annotated[int, Field(ge=1, le=2**20)]
Size = Annotated[int, Field(ge=1, le=2**24)]
Name = Annotated[str, Field(min_length=1, max_length=1000)]
Fraction = Annotated[float, Field(ge=LEAST_FACTOR, le=1, allow_inf_nan=False)]
Bytes = Annotated[float, quantity(BYTES)]
BytesOrNone = Annotated[float, quantity(BYTES_OR_NONE)]
BytesPerSecond = Annotated[float, quantity(BYTES_PER_SECOND)]
Latency = Annotated[float, quantity(LATENCY)]
FlopPerSecond = Annotated[float, quantity(FLOP_PER_SECOND)]
Watts = Annotated[float, quantity(WATTS)]
Hertz = Annotated[float, quantity(HERTZ)]
Seconds = Annotated[float, quantity(SECONDS)]
