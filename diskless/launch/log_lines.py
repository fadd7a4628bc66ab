"""How agents write their logs: one line an event, as text or as JSON, from some level on."""

import json
import logging
import os
import sys
import time

LEVEL_VARIABLE = "DISKLESS_LOG"
"""How much agents log, as Python names it. With `debug` a leader names, for each command that
it acknowledges, the voters who had it by then."""
FORMAT_VARIABLE = "DISKLESS_LOG_FORMAT"
"""`json` has every line be an object; anything else is text."""
TEXT_FORMAT = "%(asctime)s %(levelname)s %(name)s %(message)s"


class JsonLines(logging.Formatter):
    """One object a line: time, level, name, message, and error with a traceback."""

    def format(self, record: logging.LogRecord) -> str:
        fields = {
            "time": f"{self.formatTime(record, '%Y-%m-%d %H:%M:%S')},{int(record.msecs):03d}",
            "level": record.levelname,
            "name": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            fields["error"] = self.formatException(record.exc_info)
        return json.dumps(fields)

    converter = time.localtime


def set_up() -> None:
    """Has this process log to its standard error, as its environment asks for."""
    handler = logging.StreamHandler(sys.stderr)
    as_json = os.environ.get(FORMAT_VARIABLE, "").lower() == "json"
    handler.setFormatter(JsonLines() if as_json else logging.Formatter(TEXT_FORMAT))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    wanted = os.environ.get(LEVEL_VARIABLE, "info").upper()
    level = logging.getLevelNamesMapping().get(wanted, logging.INFO)
    logging.getLogger("diskless").setLevel(level)
