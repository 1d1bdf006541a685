"""What scripts/bench.py is made of: cases, the limit, measuring, and reports."""
