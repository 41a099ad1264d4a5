"""Telemetry: counters, gauges and histograms of what lowdnn does in a process, and exporters of them.

``measures`` defines every measure, ``registry`` holds their values, and ``prometheus`` writes them (extra
``prometheus``).
"""

from __future__ import annotations

from lowdnn.telemetry.measures import MEASURES, Measure
from lowdnn.telemetry.registry import REGISTRY, Registry
from lowdnn.telemetry.samples import Family, Histogram, Sample

__all__ = ["MEASURES", "REGISTRY", "Family", "Histogram", "Measure", "Registry", "Sample"]
