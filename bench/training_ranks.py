"""Processes that train together, two or one, for the scripts beside this file."""
import json
import os
import pathlib
import socket
import statistics
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "release"
TROIKA = BUILD / "troika" / "cli" / "troika"
PYTHON = "/usr/bin/python3"  # Debian's, with its python3-torch


def fail(message):
    print(f"error: [bench] {message}", file=sys.stderr)
    sys.exit(2)


def need_pytorch(python=PYTHON):
    """The version of PyTorch that this interpreter has."""
    found = subprocess.run([python, "-c", "import torch, torchvision; print(torch.__version__)"],
                           stdout=subprocess.PIPE, text=True)
    if found.returncode != 0:
        fail(f"{python} needs PyTorch and torchvision; install Debian's python3-torch and python3-torchvision, "
             "or PyPI's torch and torchvision for another interpreter")
    return found.stdout.strip()


def build(*targets, folder=BUILD):
    """Builds in the folder of the preset release, or in another one that is configured already."""
    os.chdir(ROOT)
    where = ["--preset", "release"] if folder == BUILD else [str(folder)]
    subprocess.run(["cmake", *where, "-DTROIKA_BENCH=ON"], check=True, stdout=subprocess.DEVNULL)
    subprocess.run(["cmake", "--build", *where, "--target", "troika", *targets], check=True,
                   stdout=sys.stderr)


def start_ranks(command, nodes=1, ranks=2, address="127.0.0.1", hosts=None, **streams):
    """One process for each of `ranks` on each of `nodes`, with torchrun's variables and one thread. `hosts` are
    the words in front of the command that put it on its node, `streams` arguments of subprocess.Popen."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    return [subprocess.Popen(
        [*(hosts[rank // ranks] if hosts else []), *map(str, command)], text=True, **streams, env={
            **os.environ, "RANK": str(rank), "WORLD_SIZE": str(nodes * ranks),
            "LOCAL_RANK": str(rank % ranks), "LOCAL_WORLD_SIZE": str(ranks),
            "GROUP_RANK": str(rank // ranks), "GROUP_WORLD_SIZE": str(nodes), "MASTER_ADDR": address,
            "MASTER_PORT": str(port), "TORCHELASTIC_RUN_ID": "bench", "OMP_NUM_THREADS": "1"})
        for rank in range(nodes * ranks)]


class Ranks:
    def __init__(self, command, hosts=None, address="127.0.0.1", count=2):
        """Processes of one node, or each on its own of `hosts`."""
        nodes = count if hosts else 1
        self.ranks = start_ranks(command, nodes, count // nodes, address, hosts,
                                 stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def measure(self, mode, steps):
        """"alone": steps of rank 0 on its own; else a mode of the ranks' program, as "sync" (steps of all ranks together) and
        "local" (each on its own). Medians over steps and ranks, in seconds."""
        ranks = self.ranks[:1] if mode == "alone" else self.ranks
        for rank in ranks:
            rank.stdin.write(f"{'local' if mode == 'alone' else mode} {steps}\n")
            rank.stdin.flush()
        answers = []
        for rank in ranks:
            line = rank.stdout.readline()
            if not line:
                fail(f"a rank ended; got exit code {rank.wait()} of {rank.args}")
            answers.append(json.loads(line))
        return {key: statistics.median(sum((answer[key] for answer in answers), []))
                for key in answers[0]}

    def close(self):
        for rank in self.ranks:
            rank.stdin.close()
        for rank in self.ranks:
            rank.wait()
