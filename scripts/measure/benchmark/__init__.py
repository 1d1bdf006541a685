"""Cases, lower limits of the time, measurement and reports of scripts/measure/bench.py."""
