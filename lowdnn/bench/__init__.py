"""Benchmarks: suites of cases, least times, runs on a device, verdicts on two of them, pictures. Peers are not here."""
