from __future__ import annotations

import re
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

import lowdnn.config as config_module
from lowdnn.config import Config, ConfigWarning


def test_defaults_without_variables() -> None:
    config = Config.from_environment({"HOME": "/home/me"})
    tuning_path = (Path("/home/me/.local/share/lowdnn/tuning"), Path("/usr/local/share/lowdnn/tuning"))
    assert config == Config(cache_dir=Path("/home/me/.cache/lowdnn"), tuning_path=tuning_path)
    assert (config.device, config.disk_cache, config.log_level, config.debug) == ("auto", True, "off", False)


def test_every_variable_is_read() -> None:
    config = Config.from_environment(
        {
            "LOWDNN_DEVICE": "Emulated",
            "LOWDNN_EMULATED_ARCH": "sm_80",
            "LOWDNN_EMULATED_POLICY": "warp-serial(7),timeout=2.5",
            "LOWDNN_CACHE_DIR": "/somewhere",
            "LOWDNN_DISK_CACHE": "off",
            "LOWDNN_LOG_LEVEL": "DEBUG",
            "LOWDNN_LOG_FILE": "log.%p",
            "LOWDNN_DEBUG": "1",
            "LOWDNN_NVTX": "yes",
            "LOWDNN_CACHE_SIZE": "20m",
            "LOWDNN_TUNING_PATH": "/tuning:/site",
            "LOWDNN_TUNING_SECONDS": "2.5",
        }
    )
    assert config == Config(
        "emulated",
        "sm_80",
        "warp-serial(7),timeout=2.5",
        Path("/somewhere"),
        False,
        "debug",
        "log.%p",
        True,
        True,
        20 << 20,
        (Path("/tuning"), Path("/site")),
        2.5,
    )


@pytest.mark.parametrize(("text", "size"), [("7", 7), ("3k", 3 << 10), ("20M", 20 << 20), ("2g", 2 << 30)])
def test_sizes_have_units(text: str, size: int) -> None:
    assert Config.from_environment({"LOWDNN_CACHE_SIZE": text}).cache_limit_bytes == size


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("LOWDNN_DEVICE", "gpu"),
        ("LOWDNN_EMULATED_ARCH", "hopper"),
        ("LOWDNN_EMULATED_POLICY", "rm -rf"),
        ("LOWDNN_CACHE_DIR", "relative"),
        ("LOWDNN_TUNING_PATH", "/absolute:relative"),
        ("LOWDNN_TUNING_SECONDS", "0"),
        ("LOWDNN_DISK_CACHE", "2"),
        ("LOWDNN_CACHE_SIZE", "-1"),
        ("LOWDNN_CACHE_SIZE", "2 GiB"),
        ("LOWDNN_LOG_LEVEL", "loud"),
        ("LOWDNN_LOG_LEVEL", "runtime=debug,info"),
        ("LOWDNN_LOG_LEVEL", "info,runtme=debug"),
        ("LOWDNN_LOG_LEVEL", "info,runtime"),
        ("LOWDNN_LOG_FORMAT", "xml"),
        ("LOWDNN_DEBUG", "maybe"),
        ("LOWDNN_NVTX", "maybe"),
        ("LOWDNN_COMPILE", "later"),
    ],
)
def test_unknown_value_warns_and_takes_the_default(name: str, value: str) -> None:
    with pytest.warns(ConfigWarning, match=f"{name}='{value}' is not understood: expected .*; taking [^()]*$"):
        config = Config.from_environment({"HOME": "/home/me", name: value})
    assert config == Config.from_environment({"HOME": "/home/me"})


def test_cache_directory_follows_xdg_and_needs_a_home() -> None:
    assert Config.from_environment({"XDG_CACHE_HOME": "/xdg", "HOME": "/h"}).cache_dir == Path("/xdg/lowdnn")
    assert Config.from_environment({"XDG_CACHE_HOME": "relative", "HOME": "/h"}).cache_dir == Path("/h/.cache/lowdnn")
    assert Config.from_environment({}).cache_dir is None


def test_isolated_python_reads_nothing() -> None:
    code = "from lowdnn.config import Config; c = Config.from_environment(); print(c.device, c.cache_dir)"
    root = Path(__file__).parents[1]
    found = subprocess.run(
        [sys.executable, "-E", "-c", f"import sys; sys.path.insert(0, {str(root)!r}); {code}"],
        env={"LOWDNN_DEVICE": "cuda", "HOME": "/h"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout.strip() == "auto None"


def test_the_table_in_the_docstring_is_complete() -> None:
    source = Path(config_module.__file__).read_text(encoding="utf-8")
    table, code = source.split('"""', 2)[1:]
    read = set(re.findall(r'"(LOWDNN_[A-Z_]+[A-Z])"', code))
    assert len(read) <= 20
    assert all(f"| {name} " in table for name in read | {"LOWDNN_LOG_FILE"})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Config.from_environment(dict.fromkeys(read, ""))


@pytest.mark.parametrize(
    "policy", ["cta-reverse", "fuzz(3)", "fuzz(3),early,races", "lockstep, late", "lockstep,devices=2"]
)
def test_a_policy_may_say_more(policy: str) -> None:
    assert Config.from_environment({"LOWDNN_EMULATED_POLICY": policy}).emulated_policy == policy


@pytest.mark.parametrize("policy", ["zigzag", "fuzz", "fuzz(1),soon", "warp-serial", "warp-serial(x)", "lockstep(3)"])
def test_a_policy_that_does_not_exist_warns(policy: str) -> None:
    with pytest.warns(ConfigWarning, match="LOWDNN_EMULATED_POLICY"):
        assert Config.from_environment({"LOWDNN_EMULATED_POLICY": policy}).emulated_policy == "lockstep"


@pytest.mark.parametrize(
    ("environment", "level", "file"),
    [
        ({"CUDNN_LOGLEVEL_DBG": "3", "CUDNN_LOGDEST_DBG": "cudnn.%i.log"}, "info", "cudnn.%p.log"),
        ({"CUDNN_LOGLEVEL_DBG": "2", "CUDNN_LOGDEST_DBG": "stdout"}, "warning", "stdout"),
        ({"CUDNN_LOGLEVEL_DBG": "-4", "CUDNN_LOGDEST_DBG": "stdout"}, "off", ""),
        ({"CUDNN_LOGLEVEL_DBG": "17", "CUDNN_LOGDEST_DBG": "stderr"}, "info", "stderr"),
        ({"CUDNN_LOGERR_DBG": "1", "CUDNN_LOGWARN_DBG": "1", "CUDNN_LOGDEST_DBG": "log"}, "warning", "log"),
        ({"CUDNN_LOGLEVEL_DBG": "3"}, "off", ""),
        ({"CUDNN_LOGDEST_DBG": "stdout"}, "off", ""),
        ({"CUDNN_FRONTEND_LOG_INFO": "10", "CUDNN_FRONTEND_LOG_FILE": "fe.log"}, "info", "fe.log"),
        ({"CUDNN_FRONTEND_LOG_INFO": "0", "CUDNN_FRONTEND_LOG_FILE": "fe.log"}, "off", ""),
        ({"CUDNN_FRONTEND_LOG_INFO": "1"}, "off", ""),
        (
            {
                "CUDNN_LOGLEVEL_DBG": "1",
                "CUDNN_LOGDEST_DBG": "be.log",
                "CUDNN_FRONTEND_LOG_INFO": "1",
                "CUDNN_FRONTEND_LOG_FILE": "fe.log",
            },
            "error",
            "be.log",
        ),
        ({"LOWDNN_LOG_LEVEL": "off", "CUDNN_LOGLEVEL_DBG": "3", "CUDNN_LOGDEST_DBG": "log"}, "off", "log"),
        ({"LOWDNN_LOG_LEVEL": "debug", "CUDNN_LOGDEST_DBG": "log"}, "debug", ""),
        ({"LOWDNN_LOG_FILE": "own", "CUDNN_LOGLEVEL_DBG": "3", "CUDNN_LOGDEST_DBG": "log"}, "info", "own"),
    ],
)
def test_log_variables_of_cudnn_stand_in(environment: dict[str, str], level: str, file: str) -> None:
    config = Config.from_environment(environment)
    assert (config.log_level, config.log_file) == (level, file)


def test_a_level_that_cudnn_would_not_understand_warns() -> None:
    with pytest.warns(ConfigWarning, match="CUDNN_LOGLEVEL_DBG='all' is not understood: expected 0"):
        assert Config.from_environment({"CUDNN_LOGLEVEL_DBG": "all", "CUDNN_LOGDEST_DBG": "log"}).log_level == "off"
