"""A script cannot tell xl from `python script.py`: same output, same errors, same files."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from .warm_zygote import Outcome, WarmZygote

WAYS: dict[str, list[str]] = {
    "exec": [],
    "zygote": ["--start", "zygote"],
    "fresh": ["--start", "fresh"],
}
# Makes xl treat the script as one that distributes itself, so that it does no more than to start it.
FIRST = "import os; os.environ.get('RANK')\n"

PROBE = (
    FIRST
    + """
import atexit, json, multiprocessing, pickle, sys, threading, time, __main__

class Thing:
    pass

def send(queue):
    queue.put((os.path.basename(__file__), __name__, multiprocessing.current_process().name))

if __name__ == "__main__":
    print(__name__, __file__, sys.argv, sys.path[0], __spec__, __package__, __doc__)
    print(__main__.Thing is Thing, type(pickle.loads(pickle.dumps(Thing()))) is Thing)
    print(sorted(name for name in globals() if not name.startswith("_")))
    print(sorted(name for name in globals() if name.startswith("_")))
    for method in ("fork", "spawn", "forkserver"):
        context = multiprocessing.get_context(method)
        queue = context.Queue()
        child = context.Process(target=send, args=(queue,), name=method)
        child.start()
        print(queue.get())
        child.join()
    print(sys.stdout.line_buffering, sys.stdout.encoding, sys.stdin.read())
    print(sys.flags, sys.warnoptions, threading.current_thread() is threading.main_thread())
    print([name for name in os.environ if name.startswith("XL_")])
    print("xl" in sys.argv[0], sys.excepthook is sys.__excepthook__ or sys.excepthook.__module__)
    atexit.register(print, "at exit")
    threading.Thread(target=lambda: (time.sleep(0.3), print("thread done"))).start()
    print("main done")
"""
)

IMPORTS = FIRST + "import beside\nprint(beside.value)\n"

RAISES = (
    FIRST
    + """
def inner():
    raise KeyError("odd")
try:
    inner()
except KeyError as error:
    raise ValueError("outer") from error
"""
)


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WarmZygote]:
    folder = tmp_path_factory.mktemp("warm")
    zygote = WarmZygote(folder, environment(folder))
    yield zygote
    zygote.close()


def environment(cwd: Path) -> dict[str, str]:
    return {
        **os.environ, "XDG_STATE_HOME": str(cwd / "state"), "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"
    }  # fmt: skip


def begin(command: list[str], cwd: Path, way: str | None) -> subprocess.Popen[str]:
    xl = ["-m", "xl.cli", "launch", "-q", "--cpu", *WAYS[way]] if way is not None else []
    pipe = subprocess.PIPE
    return subprocess.Popen(
        [sys.executable, *xl, *command],
        cwd=cwd, env=environment(cwd), stdin=pipe, stdout=pipe, stderr=pipe, text=True,
    )  # fmt: skip


def end(process: subprocess.Popen[str]) -> Outcome:
    with process:
        try:
            out, err = process.communicate("typed", timeout=100)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
    ours = "".join(line + "\n" for line in err.splitlines() if not line.startswith("xl: "))
    return Outcome(process.returncode, out, ours)


def run(command: list[str], cwd: Path, way: str | None) -> Outcome:
    return end(begin(command, cwd, way))


def assert_same(command: list[str], cwd: Path, *ways: str, warm: WarmZygote | None = None) -> Outcome:
    """Every way ends as plain Python does, all of them run at the same time; returns how that is."""
    started = {way: begin(command, cwd, way) for way in (None, *ways)}
    plain, *others = [end(process) for process in started.values()]
    for way, ours in zip(ways, others, strict=True):
        assert ours == plain, way
    if warm is not None:
        assert warm.run(command, cwd) == plain, "forked"
    return plain


def test_a_script(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PROBE)
    done = assert_same(["train.py", "--lr", "1"], tmp_path, *WAYS)
    assert done.out.splitlines()[-2:] == ["thread done", "at exit"]


@pytest.mark.parametrize("form", ["folder/train.py", "./folder/train.py", "module", "folder", "zip"])
def test_every_form_of_program(tmp_path: Path, warm: WarmZygote, form: str) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "beside.py").write_text("value = 1")
    (folder / "__init__.py").write_text("")
    text = IMPORTS + "import sys\nprint(sys.argv, sys.path[0], __name__, __file__, __package__)\n"
    (folder / "train.py").write_text(text)
    (folder / "__main__.py").write_text(text)
    command = [form, "x"]
    if form == "module":
        (tmp_path / "beside.py").write_text("value = 2")
        command = ["-m", "folder.train", "x"]
    if form == "zip":
        with zipfile.ZipFile(tmp_path / "zip", "w") as archive:
            archive.write(folder / "beside.py", "beside.py")
            archive.write(folder / "__main__.py", "__main__.py")
    assert_same(command, tmp_path, "exec", warm=warm)


@pytest.mark.parametrize(
    "text",
    [
        RAISES,
        FIRST + "def f(:\n",
        FIRST + "import nothing_of_this_name\n",
        FIRST + "raise SystemExit('text')\n",
        FIRST + "import sys\nsys.excepthook = lambda *error: print('hook', error[0])\n1 / 0\n",
        FIRST + "assert 1 == 2, 'no'\n",
    ],
    ids=["chain", "syntax", "import", "exit", "hook", "assert"],
)
def test_errors_look_as_in_python(tmp_path: Path, warm: WarmZygote, text: str) -> None:
    (tmp_path / "train.py").write_text(text)
    assert_same(["train.py"], tmp_path, "exec", warm=warm)


ENDING = (
    FIRST
    + """
import atexit, ctypes, sys, tempfile
import beside

class Noisy:
    def __del__(self):
        print("destroyed", sys.stdout is not None)

noisy = Noisy()
noisy.cycle = noisy
left_open = open("left_open.txt", "w")
left_open.write("written")
temporary = tempfile.NamedTemporaryFile(dir=".", suffix=".temporary")
folder = tempfile.TemporaryDirectory(dir=".", suffix=".temporary")
atexit.register(lambda: print("handler"))
ctypes.CDLL(None).printf(b"from C\\n")
"""
)


def test_what_a_script_leaves_to_the_interpreters_end(tmp_path: Path, warm: WarmZygote) -> None:
    (tmp_path / "train.py").write_text(ENDING)
    (tmp_path / "beside.py").write_text("file = open('beside.txt', 'w')\nfile.write('beside')\n")
    plain = run(["train.py"], tmp_path, None)
    for way in ("exec", "forked"):
        for name in ("left_open.txt", "beside.txt"):
            (tmp_path / name).unlink()
        ours = warm.run(["train.py"], tmp_path) if way == "forked" else run(["train.py"], tmp_path, way)
        assert ours == plain, way
        assert (tmp_path / "left_open.txt").read_text() == "written"
        assert (tmp_path / "beside.txt").read_text() == "beside"
        assert not list(tmp_path.glob("*.temporary"))


def test_torch_and_its_data_workers(tmp_path: Path) -> None:
    """A data worker that is spawned imports torch anew, so the two launches run at the same time."""
    (tmp_path / "train.py").write_text(
        FIRST
        + """
import sys
import torch
from torch.utils.data import DataLoader, Dataset

class Numbers(Dataset):
    def __len__(self):
        return 6
    def __getitem__(self, i):
        return torch.tensor(i)

if __name__ == "__main__":
    for method in ("fork", "spawn", "forkserver"):
        loader = DataLoader(Numbers(), batch_size=3, num_workers=1, multiprocessing_context=method)
        print(method, [batch.tolist() for batch in loader])
    torch.save({"a": Numbers()}, sys.argv[1])
    print(type(torch.load(sys.argv[1], weights_only=False)["a"]) is Numbers)
"""
    )
    started = [begin(["train.py", f"{way}.pt"], tmp_path, way) for way in ("exec", "zygote")]
    batches = [[0, 1, 2], [3, 4, 5]]
    expected = f"fork {batches}\nspawn {batches}\nforkserver {batches}\nTrue\n"
    assert [end(process) for process in started] == [Outcome(0, expected, "")] * 2


@pytest.mark.parametrize("way", ["zygote", "fresh"])
def test_ranks_of_a_script_that_distributes_itself_draw_apart(tmp_path: Path, way: str) -> None:
    """As processes of their own would: a forked worker must not repeat the random state of its origin."""
    (tmp_path / "train.py").write_text(
        FIRST
        + "import random, numpy, torch\n"
        + "print(random.random(), numpy.random.rand(), torch.rand(1).item())\n"
    )
    done = run(["--num-processes", "2", "--show-ranks", "all", "train.py"], tmp_path, way)
    numbers = re.findall(r"0\.\d+|\d\.\d+e-\d+", done.out)
    assert len(numbers) == len(set(numbers)) == 6, done.out


def test_variables_that_torch_reads_at_its_import_are_in_time(tmp_path: Path) -> None:
    """The zygote has imported torch before the script sets them: such a script gets fresh processes."""
    (tmp_path / "train.py").write_text(
        FIRST + "os.environ['OMP_NUM_THREADS'] = '2'\nimport torch\nprint(torch.get_num_threads())\n"
    )
    ways = {"zygote": "1\n", "exec": "2\n"}  # asked for by name, the zygote is used all the same
    started = [begin(["--num-processes", "2", "train.py"], tmp_path, way) for way in ways]
    assert [end(process).out for process in started] == list(ways.values())
