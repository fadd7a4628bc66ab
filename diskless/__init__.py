"""diskless: a checkpoint store for Apache Spark in the memory of its own nodes."""

__version__ = "0.1.0"
