"""What we measure, and against what: always as ratios within one run."""
