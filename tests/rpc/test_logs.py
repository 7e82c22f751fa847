import argparse
import logging

import pytest

from anydraft.rpc.logs import add_log_level_flag, set_up_logging


@pytest.fixture(autouse=True)
def _restore_root_logger():
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def test_the_flag_decides_what_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser()
    add_log_level_flag(parser)
    assert parser.parse_args([]).log_level == "info"
    set_up_logging(parser.parse_args(["--log-level", "warning"]).log_level)
    logging.getLogger("some.where").info("hidden")
    logging.getLogger("some.where").warning("shown")
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith("WARNING some.where: shown")


def test_unknown_levels_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser()
    add_log_level_flag(parser)
    with pytest.raises(SystemExit):
        parser.parse_args(["--log-level", "loud"])
    assert "invalid choice" in capsys.readouterr().err
