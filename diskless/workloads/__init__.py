"""Programs for Spark that prove a checkpoint store: replayable, with an answer to compare."""
