"""The parts of scripts/bench.py: cases, lower limits of the time, measurement and reports."""
