"""``install`` and ``python -m lowdnn.capi``: which library a process and its children get."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from lowdnn.capi import libpython, write_library
from lowdnn.capi.library import LIBRARY_NAME
from lowdnn.capi.running import environment_on
from tests.capi.test_loading import python

needs_gcc = pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is not installed")

USER = "int cudnnGraphVersionCheck(void); int answer(void) { return cudnnGraphVersionCheck(); }\n"
OTHER = "int cudnnGraphVersionCheck(void) { return 77; }\n"


def run(*arguments: str, cwd: Path, typed: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    """``python -m lowdnn.capi`` with the arguments.  typed: its standard input."""
    known = {"LOWDNN_DEVICE": "emulated", "PYTHONPATH": os.getcwd()} | environment
    return subprocess.run(
        [sys.executable, "-m", "lowdnn.capi", *arguments],
        cwd=cwd,
        env=os.environ | known,
        input=typed,
        capture_output=True,
        text=True,
        timeout=120,
    )


def build_framework(folder: Path) -> None:
    """user.so needs libcudnn.so.9 and has a path to another library of that name, as PyTorch has one to cuDNN's."""
    for name, text in (("user.c", USER), ("other.c", OTHER)):
        (folder / name).write_text(text)
    for build in (
        ["other.c", "-o", LIBRARY_NAME, f"-Wl,-soname,{LIBRARY_NAME}"],
        ["user.c", "-o", "user.so", f"./{LIBRARY_NAME}", "-Wl,--disable-new-dtags,-rpath,$ORIGIN"],
    ):
        subprocess.run(["gcc", "-shared", "-fPIC", *build], cwd=folder, check=True)


def test_a_program_that_trains_has_gradients_compiled(tmp_path: Path) -> None:
    """The last call counts, for the handles that are made from then on."""
    code = """if True:
        import ctypes
        from lowdnn import capi
        from lowdnn.backend import Handle
        from lowdnn.capi.loading import process_state
        for wanted in (False, True, False):
            library, handle = capi.install(compiles_gradients=wanted), ctypes.c_void_p()
            assert library.cudnnCreate(ctypes.byref(handle)) == 0
            opened = process_state().objects.get(handle.value, Handle, "handle")
            print(opened.runtime.config.compile_gradients)
    """
    assert python(code, tmp_path, LOWDNN_DEVICE="emulated").split() == ["False", "True", "False"]


@needs_gcc
def test_a_framework_binds_to_the_installed_library(tmp_path: Path) -> None:
    build_framework(tmp_path)
    code = """if True:
        import ctypes, os
        from lowdnn import capi
        assert capi.loaded_library() is None
        library = capi.install()
        assert ctypes.CDLL("./user.so").answer() == 0
        assert ctypes.CDLL("libcudnn.so.9").cudnnCreate(None) == 2002
        assert capi.call_counts() == {"cudnnCreate": 1, "cudnnGraphVersionCheck": 1}
        found = capi.loaded_library()
        assert found.is_own and found.is_answered
        folder = os.environ["LD_LIBRARY_PATH"].split(":")[0]
        assert found.file == f"{folder}/libcudnn.so.9" and os.path.exists(found.file)
        assert ctypes.CDLL(found.file)._handle == library._handle
        assert capi.install()._handle == library._handle == capi.load()._handle
        assert os.environ["LD_LIBRARY_PATH"] == f"{folder}:/somewhere"
        if os.fork() == 0:
            raise SystemExit
        os.wait()
        assert os.path.exists(found.file)
        print(folder)
    """
    folder = python(code, tmp_path, LD_LIBRARY_PATH="/somewhere").strip()
    assert folder
    assert not os.path.exists(folder)


@needs_gcc
def test_a_library_that_came_first_is_named(tmp_path: Path) -> None:
    build_framework(tmp_path)
    code = """if True:
        import ctypes
        from lowdnn import capi
        other = ctypes.CDLL("./libcudnn.so.9")
        try:
            capi.install()
        except ImportError as error:
            print(error)
        assert not capi.loaded_library().is_own and other.cudnnGraphVersionCheck() == 77
    """
    assert python(code, tmp_path) == (
        "SUBLIBRARY_LOADING_FAILED install: expected no libcudnn.so.9 yet, got ./libcudnn.so.9; "
        "call it before a framework is imported\n"
    )


@needs_gcc
def test_a_program_and_its_children_run_on_the_library(tmp_path: Path) -> None:
    build_framework(tmp_path)
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.users_own = __name__\n")
    (tmp_path / "program.py").write_text("""if True:
        import ctypes, subprocess, sys
        handle = ctypes.c_void_p()
        assert sys.users_own == "sitecustomize" and sys.modules["sitecustomize"].__file__.startswith(sys.path[0])
        assert ctypes.CDLL("./user.so").answer() == 0
        assert ctypes.CDLL("libcudnn.so.9").cudnnCreate(ctypes.byref(handle)) == 0
        if len(sys.argv) < 3:
            subprocess.run([sys.executable, sys.argv[0], *sys.argv[1:], "child"], check=True)
        print(sys.argv[1:], flush=True)
    """)
    path = f"{tmp_path}{os.pathsep}{os.getcwd()}"
    done = run("program.py", "-x", cwd=tmp_path, PYTHONPATH=path)
    assert (done.stdout, done.stderr, done.returncode) == ("['-x', 'child']\n['-x']\n", "", 0)


def test_processes_of_multiprocessing_are_connected(tmp_path: Path) -> None:
    """A module runs with input; a child has handles of its own, however it begins."""
    (tmp_path / "program.py").write_text("""if True:
        import ctypes, multiprocessing, sys
        def opened(_):
            handle = ctypes.c_void_p()
            library = ctypes.CDLL("libcudnn.so.9")
            return library.cudnnCreate(ctypes.byref(handle)) or library.cudnnDestroy(handle)
        if __name__ == "__main__":
            print(sys.argv[1:], sys.stdin.read(), flush=True)
            for method in ("spawn", "fork", "forkserver"):
                with multiprocessing.get_context(method).Pool(2) as pool:
                    print(method, pool.map(opened, range(4)))
            print("parent", opened(0))
    """)
    path = f"{tmp_path}{os.pathsep}{os.getcwd()}"
    done = run("-m", "program", "--its", "arguments", cwd=tmp_path, typed="typed", PYTHONPATH=path)
    assert (done.stderr, done.returncode) == ("", 0)
    assert done.stdout.splitlines() == [
        "['--its', 'arguments'] typed",
        "spawn [0, 0, 0, 0]",
        "fork [0, 0, 0, 0]",
        "forkserver [0, 0, 0, 0]",
        "parent 0",
    ]


@pytest.mark.parametrize("function", ["install", "load"])
def test_threads_that_ask_at_once_get_one_library(function: str, tmp_path: Path) -> None:
    code = f"""if True:
        import os, sys, threading, time
        from lowdnn import capi
        from lowdnn.capi import installing
        found = installing.loaded_library
        installing.loaded_library = lambda: (found(), time.sleep(0.02))[0]
        sys.setswitchinterval(1e-6)
        handles, barrier = [], threading.Barrier(8)
        def work():
            barrier.wait()
            handles.append(capi.{function}()._handle)
        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        assert len(handles) == 8 and len(set(handles)) == 1
        folders = [folder for folder in os.environ.get("LD_LIBRARY_PATH", "").split(":") if "lowdnn-" in folder]
        assert len(folders) <= 1, folders
        capi.loaded_library().is_answered or sys.exit("not connected")
        print("one")
    """
    assert python(code, tmp_path) == "one\n"


@needs_gcc
def test_children_that_run_no_sitecustomize_are_connected(tmp_path: Path) -> None:
    """A C program, and a Python that ignores the environment, are connected at their first call."""
    (tmp_path / "child.c").write_text(
        "#include <stdio.h>\nint cudnnGraphVersionCheck(void);\n"
        'int main(void) { printf("%d\\n", cudnnGraphVersionCheck()); return 0; }\n'
    )
    write_library(tmp_path / LIBRARY_NAME)
    subprocess.run(["gcc", "child.c", "-o", "child", f"./{LIBRARY_NAME}"], cwd=tmp_path, check=True)
    inner = "import ctypes; print(ctypes.CDLL('libcudnn.so.9').cudnnGraphVersionCheck())"
    commands = f"[['./child'], [sys.executable, '-I', '-c', {inner!r}]]"
    code = f"import subprocess, sys; [subprocess.run(command, check=True) for command in {commands}]"
    done = run("-c", code, cwd=tmp_path)
    expected = "0\n0\n" if Path(libpython()).is_file() else "1001\n0\n"
    assert (done.stdout, done.stderr, done.returncode) == (expected, "", 0)


@needs_gcc
@pytest.mark.parametrize("flags", [(), ("-I",)], ids=["connected at its start", "connected at the first call"])
def test_a_call_behind_the_end_starts_no_other_python(flags: tuple[str, ...], tmp_path: Path) -> None:
    """Destructors of C++ objects that live as long as the process make such calls."""
    (tmp_path / "late.c").write_text(
        "#include <stdio.h>\nint cudnnGraphVersionCheck(void);\nint now(void) { return cudnnGraphVersionCheck(); }\n"
        '__attribute__((destructor)) static void late(void) { printf("late %d\\n", now()); }\n'
    )
    write_library(tmp_path / LIBRARY_NAME)
    build = ["gcc", "-shared", "-fPIC", "late.c", "-o", "late.so", f"./{LIBRARY_NAME}"]
    subprocess.run(build, cwd=tmp_path, check=True)
    inner = f"import ctypes; print(ctypes.CDLL({str(tmp_path / 'late.so')!r}).now(), flush=True)"
    code = f"import subprocess, sys; subprocess.run([sys.executable, *{flags!r}, '-c', {inner!r}], check=True)"
    done = run("-c", code, cwd=tmp_path)
    first = 0 if not flags or Path(libpython()).is_file() else 1001
    assert (done.stdout, done.stderr, done.returncode) == (f"{first}\nlate 1001\n", "", 0)


def test_exit_codes_signals_and_usage(tmp_path: Path) -> None:
    assert run("-c", "raise SystemExit(7)", cwd=tmp_path).returncode == 7
    kill = f"import os; os.kill(os.getpid(), {int(signal.SIGKILL)})"
    assert run("-c", kill, cwd=tmp_path).returncode == 128 + signal.SIGKILL
    passed_on = "import os, signal, time; os.kill(os.getppid(), signal.SIGTERM); time.sleep(60)"
    assert run("-c", passed_on, cwd=tmp_path).returncode == 128 + signal.SIGTERM
    interrupted = "import os, signal; os.kill(os.getppid(), signal.SIGINT); print('goes on')"
    assert run("-c", interrupted, cwd=tmp_path).stdout == "goes on\n"
    told = run(cwd=tmp_path)
    assert told.returncode == 2
    assert told.stderr.startswith("usage: python -m lowdnn.capi PROGRAM.py")
    assert run("--help", cwd=tmp_path).stdout == told.stderr


def test_an_interpreter_without_lowdnn_goes_on(tmp_path: Path) -> None:
    """Where a package that lowdnn needs is missing, the library answers by itself."""
    write_library(tmp_path / LIBRARY_NAME)
    (tmp_path / "numpy.py").write_text("raise ImportError\n")
    path = os.pathsep.join([str(tmp_path), os.getcwd()])
    environment = environment_on(tmp_path / LIBRARY_NAME, os.environ | {"PYTHONPATH": path})
    code = "import ctypes; print(ctypes.CDLL('libcudnn.so.9').cudnnGraphVersionCheck())"
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("1001\n", "")


def test_what_was_preloaded_stays() -> None:
    given = {"LD_PRELOAD": "/a.so", "PYTHONPATH": "/b", "HOME": "/c"}
    found = environment_on(Path("/l/libcudnn.so.9"), given)
    assert found["LD_PRELOAD"] == "/l/libcudnn.so.9:/a.so"
    assert found["HOME"] == "/c"
    assert found["PYTHONPATH"].endswith("lowdnn/capi/startup:/b")
    assert environment_on(Path("/l/libcudnn.so.9"), {})["LD_PRELOAD"] == "/l/libcudnn.so.9"


def test_info_tells_what_is_in_place(tmp_path: Path) -> None:
    report = run("-m", "lowdnn", "info", cwd=tmp_path).stdout
    assert "\n  libcudnn.so.9        lowdnn, connected: /" in report
    plain = "from lowdnn.cli.main import main; raise SystemExit(main(['info']))"
    assert "\n  libcudnn.so.9        not loaded\n" in python(plain, tmp_path)
