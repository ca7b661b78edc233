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
PYTHON = "/usr/bin/python3"  # Debian's, with its python3-torch


def fail(message):
    print(f"error: [bench] {message}", file=sys.stderr)
    sys.exit(2)


def need_pytorch():
    if subprocess.run([PYTHON, "-c", "import torch, torchvision"]).returncode != 0:
        fail("needs PyTorch; install Debian's python3-torch and python3-torchvision")


def build(*targets):
    os.chdir(ROOT)
    subprocess.run(["cmake", "--preset", "release", "-DTROIKA_BENCH=ON"], check=True,
                   stdout=subprocess.DEVNULL)
    subprocess.run(["cmake", "--build", "--preset", "release", "--target", *targets], check=True,
                   stdout=sys.stderr)


class Ranks:
    def __init__(self, command, hosts=None, address="127.0.0.1", count=2):
        """`hosts` are the words in front of each rank's command that put it on its host."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        local = ({"LOCAL_WORLD_SIZE": "1", "GROUP_WORLD_SIZE": str(count)} if hosts
                 else {"LOCAL_WORLD_SIZE": str(count)})
        self.ranks = [
            subprocess.Popen(
                [*(hosts[rank] if hosts else []), *map(str, command)], stdin=subprocess.PIPE,
                stdout=subprocess.PIPE, text=True, env={
                    **os.environ, **local, "RANK": str(rank), "WORLD_SIZE": str(count),
                    "LOCAL_RANK": "0" if hosts else str(rank),
                    "GROUP_RANK": str(rank) if hosts else "0", "MASTER_ADDR": address,
                    "MASTER_PORT": str(port), "TORCHELASTIC_RUN_ID": "bench", "OMP_NUM_THREADS": "1"})
            for rank in range(count)]

    def measure(self, mode, steps):
        """"sync": data-parallel steps; "local": each rank on its own; "alone": rank 0 on its own.
        Medians over steps and ranks, in seconds."""
        ranks = self.ranks[:1] if mode == "alone" else self.ranks
        for rank in ranks:
            rank.stdin.write(f"{'sync' if mode == 'sync' else 'local'} {steps}\n")
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
