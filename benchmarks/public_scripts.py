"""Run public plain training scripts, unmodified, under `python` and `xl launch`, and compare what they print.

The scripts are not part of this repository. Clone the repositories named in `SCRIPTS` into one folder as
`owner+name` and pass it:

    python benchmarks/public_scripts.py --sources CLONES --processes 2 3 [--only mnist vae]

Data is made from scikit-learn's digits and from random words, so nothing is downloaded. `--prelude DIR` puts
a folder with a `sitecustomize.py` before every run, to choose float64 or to switch noise off in both alike.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

NUMBER = re.compile(r"(?<![\w.])[-+]?\d+\.\d+(?:e[-+]?\d+)?")


def write_idx(path: Path, array: np.ndarray) -> None:
    """Write an array of bytes in the IDX format of the MNIST files."""
    header = bytes([0, 0, 8, array.ndim]) + b"".join(n.to_bytes(4, "big") for n in array.shape)
    path.write_bytes(header + array.astype(np.uint8).tobytes())


def make_mnist(folder: Path) -> None:
    """Write scikit-learn's digits, enlarged to 28 x 28, as the four MNIST files below `folder`."""
    raw = folder / "MNIST" / "raw"
    raw.mkdir(parents=True)
    digits = load_digits()
    grown = np.kron(digits.images / 16 * 255, np.ones((4, 4)))[:, 2:30, 2:30]
    for name, part in (("train", slice(0, 1437)), ("t10k", slice(1437, None))):
        write_idx(raw / f"{name}-images-idx3-ubyte", grown[part])
        write_idx(raw / f"{name}-labels-idx1-ubyte", digits.target[part])


def make_words(folder: Path) -> None:
    """Write three small files of random sentences."""
    folder.mkdir(parents=True)
    source = random.Random(0)
    words = ["".join(source.choices("abcdefghij", k=4)) for _ in range(120)]
    for name, lines in (("train", 200), ("valid", 60), ("test", 60)):
        text = "\n".join(" ".join(source.choices(words, k=12)) for _ in range(lines))
        (folder / f"{name}.txt").write_text(text + "\n")


def make_tokens(folder: Path) -> None:
    """Write nanoGPT's two memory-mapped token files."""
    folder.mkdir(parents=True, exist_ok=True)
    source = np.random.default_rng(0)
    for name in ("train", "val"):
        source.integers(0, 65, 20_000).astype(np.uint16).tofile(folder / f"{name}.bin")


def make_names(folder: Path) -> None:
    source = random.Random(0)
    names = ["".join(source.choices("abcdefgh", k=source.randint(3, 8))) for _ in range(400)]
    (folder / "names.txt").write_text("\n".join(names) + "\n")


@dataclass(frozen=True)
class Script:
    """One public script: where it is, how it is called, with which flags of xl, on what data."""

    repository: str
    path: str
    args: str = ""
    flags: str = ""
    prepare: Callable[[Path], None] = lambda _: None


SCRIPTS = {
    "mnist": Script(
        "pytorch+examples", "mnist/main.py", "--epochs 1", prepare=lambda d: make_mnist(d.parent / "data")
    ),
    "vae": Script(
        "pytorch+examples", "vae/main.py", "--epochs 1", prepare=lambda d: make_mnist(d.parent / "data")
    ),
    "mnist_rnn": Script(
        "pytorch+examples", "mnist_rnn/main.py", "--epochs 1", prepare=lambda d: make_mnist(d.parent / "data")
    ),
    "regression": Script("pytorch+examples", "regression/main.py"),
    "dcgan": Script(
        "pytorch+examples",
        "dcgan/main.py",
        "--dataset mnist --dataroot ../data --niter 1 --batchSize 256 --ngf 8 --ndf 8 --workers 0 "
        "--manualSeed 1",
        prepare=lambda d: make_mnist(d.parent / "data"),
    ),
    "word_lm": Script(
        "pytorch+examples",
        "word_language_model/main.py",
        "--model Transformer --data words --epochs 1 --emsize 32 --nhid 32 --log-interval 2",
        prepare=lambda d: make_words(d / "words"),
    ),
    "hogwild": Script(
        "pytorch+examples",
        "mnist_hogwild/main.py",
        "--epochs 1 --num-processes 2",
        prepare=lambda d: make_mnist(d.parent / "data"),
    ),
    "nanogpt": Script(
        "karpathy+nanoGPT",
        "train.py",
        "--device=cpu --compile=False --eval_iters=2 --log_interval=1 --block_size=32 --batch_size=8 "
        "--n_layer=2 --n_head=2 --n_embd=32 --max_iters=12 --lr_decay_iters=12 "
        "--dataset=tokens --eval_interval=6 --gradient_accumulation_steps=2",
        # It would distribute itself over nccl when it sees RANK.
        "--distributed-by xl",
        prepare=lambda d: make_tokens(d / "data" / "tokens"),
    ),
    "makemore": Script(
        "karpathy+makemore",
        "makemore.py",
        "-i names.txt -o out --max-steps 60 --num-workers 0 --n-embd 16 --n-embd2 16 --n-layer 2",
        prepare=make_names,
    ),
    "yunjey_cnn": Script(
        "yunjey+pytorch-tutorial",
        "tutorials/02-intermediate/convolutional_neural_network/main.py",
        prepare=lambda d: make_mnist(d.parent.parent / "data"),
    ),
    "yunjey_birnn": Script(
        "yunjey+pytorch-tutorial",
        "tutorials/02-intermediate/bidirectional_recurrent_neural_network/main.py",
        prepare=lambda d: make_mnist(d.parent.parent / "data"),
    ),
    "wgan_gp": Script(
        "eriklindernoren+PyTorch-GAN",
        "implementations/wgan_gp/wgan_gp.py",
        "--n_epochs 1 --n_cpu 0",
        prepare=lambda d: make_mnist(d.parent.parent / "data" / "mnist"),
    ),
}


@dataclass(frozen=True)
class Outcome:
    code: int
    numbers: list[float]
    out: str
    err: str
    seconds: float


def run(
    script: Script, sources: Path, launcher: list[str], environ: dict[str, str], timeout_s: float
) -> Outcome:
    """Run a copy of the script's folder in a fresh working tree and collect the numbers it prints."""
    with tempfile.TemporaryDirectory() as root:
        work = Path(root) / "a" / "b" / "work"
        original = sources / script.repository / script.path
        shutil.copytree(original.parent, work)
        script.prepare(work)
        command = [*launcher, original.name, *script.args.split()]
        start = time.perf_counter()
        done = subprocess.run(
            command, cwd=work, env=environ, capture_output=True, text=True, timeout=timeout_s, check=False
        )
        seconds = time.perf_counter() - start
    # A time or a rate is not a result: leave out what is followed by its unit.
    text = re.sub(r"ms/batch +\S+|[-+]?\d+\.?\d*\s*(?:ms|s|sec|seconds|%/s)\b", "", done.stdout)
    return Outcome(
        done.returncode, [float(n) for n in NUMBER.findall(text)], done.stdout, done.stderr, seconds
    )


def difference(a: list[float], b: list[float]) -> float:
    """Largest relative difference of two lists of printed numbers; infinite when their lengths differ."""
    if len(a) != len(b):
        return math.inf
    return max((abs(x - y) / max(abs(x), abs(y), 1e-12) for x, y in zip(a, b, strict=True)), default=0.0)


def split_share(err: str) -> str:
    found = re.findall(r"split (\d+(?:\.\d+)? ?%)", err)
    return found[-1] if found else "-"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sources", type=Path, required=True)
    parser.add_argument("--processes", type=int, nargs="+", default=[2, 3])
    parser.add_argument("--only", nargs="+", choices=sorted(SCRIPTS), default=list(SCRIPTS))
    parser.add_argument("--prelude", type=Path)
    parser.add_argument("--timeout-s", type=float, default=300)
    parser.add_argument("--show", action="store_true", help="print the end of what each run wrote")
    options = parser.parse_args()
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}
    if options.prelude:
        environ["PYTHONPATH"] = str(options.prelude)
    xl = str(Path(sys.executable).with_name("xl"))
    failed = 0
    print(
        f"{'script':14s} {'N':>2s} {'exit':>5s} {'numbers':>8s} {'max rel. difference':>20s} "
        f"{'split':>7s} {'s':>6s}"
    )
    for name in options.only:
        script = SCRIPTS[name]
        one = run(script, options.sources, [sys.executable], environ, options.timeout_s)
        print(
            f"{name:14s} {'py':>2s} {one.code:5d} {len(one.numbers):8d} {'':20s} {'':7s} {one.seconds:6.1f}"
        )
        if options.show and one.code:
            print(one.err[-1500:])
        for n in options.processes:
            launcher = [xl, "launch", "--cpu", "--seed", "0", "--num-processes", str(n)]
            launcher += script.flags.split()
            many = run(script, options.sources, launcher, environ, options.timeout_s)
            gap = difference(one.numbers, many.numbers)
            row = f"{name:14s} {n:2d} {many.code:5d} {len(many.numbers):8d} {gap:20.2e}"
            print(f"{row} {split_share(many.err):>7s} {many.seconds:6.1f}", flush=True)
            failed += many.code != one.code or gap > 1e-3
            if options.show:
                print(many.out[-600:], many.err[-2500:])
    return int(failed > 0)


if __name__ == "__main__":
    raise SystemExit(main())
