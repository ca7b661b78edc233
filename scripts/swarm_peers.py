"""Peers of a swarm that are processes of this machine, for the scripts beside this file."""
import csv
import ctypes
import hashlib
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
CONFIG = """[trainer]
max_epochs = -1
max_steps = {steps}
enable_progress_bar = false
limit_val_batches = 0
[checkpoint]
every_n_epochs = 0
every_n_train_steps = {every}
save_top_k = 5
[model]
name = "mlp"
hidden_width = 64
[data]
train_samples = 4096
validation_samples = 512
global_batch_size = 256
batch_size = 16
[optim]
lr = 0.005
schedule = "constant"
[swarm]
discovery_seconds = 1
sender_timeout_seconds = 5
averaging_seconds = 20
"""
LONGEST_STEP = 30  # seconds
CHECKPOINT_EVERY = 10  # steps
STOPPED = 6  # exit code of a run that was asked to save and end
PR_SET_PDEATHSIG = 1
LIBC = ctypes.CDLL(None)


def end_with_parent():
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def tensors_digest(path):
    """Of the tensors of a safetensors file: the header has the options of the run."""
    content = path.read_bytes()
    header = int.from_bytes(content[:8], "little")
    return hashlib.sha256(content[8 + header:]).hexdigest()


class Peer:
    """A process of `troika swarm`, whose log is a file. It runs on the host of its number, if a swarm has hosts."""

    def __init__(self, swarm, number, known, options):
        self.name = f"peer-{number}"
        self.log = swarm.folder / f"{self.name}.log"
        self.host = swarm.hosts.prefixes()[number] if swarm.hosts else []
        command = [*self.host, swarm.program, "swarm", "join" if known else "start", "run.toml", f"--run.name={self.name}"]
        command += [f"--peer={address}" for address in known]
        command += [f"--swarm.listen=10.0.0.{number + 1}:0"] if swarm.hosts else []
        command += options
        self.process = subprocess.Popen(command, cwd=swarm.folder, stdout=self.log.open("w"), stderr=subprocess.STDOUT,
                                        preexec_fn=end_with_parent)
        self.is_stopped = False
        self.checkpoints = swarm.folder / "runs" / self.name / "checkpoints"

    def stop(self):
        self.process.send_signal(signal.SIGSTOP)
        self.is_stopped = True

    def go_on(self):
        self.process.send_signal(signal.SIGCONT)
        self.is_stopped = False

    def address(self):
        found = re.search(r"--peer (\S+)", self.log.read_text())
        return found and found[1]

    def descriptors(self):
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def saved(self):
        """The steps of its checkpoints, with the files of their weights."""
        files = self.checkpoints.glob("epoch=*-step=*/model.safetensors")
        return {int(re.search(r"step=(\d+)", file.parent.name)[1]): file for file in files}

    def counts(self):
        """What it has counted until its last epoch: steps, whole_steps, lone_steps and loads."""
        with (self.checkpoints.parent / "metrics.csv").open() as file:
            last = [row for row in csv.DictReader(file) if row.get("swarm_steps")][-1]
        return {name: int(float(last[f"swarm_{name}"])) for name in ("steps", "whole_steps", "lone_steps", "loads")}


class Swarm:
    """Ends its peers when it is left. `hosts` are those of bench/hosts.py; without them, all peers are on this one."""

    def __init__(self, folder, program, steps, hosts=None):
        self.folder, self.program, self.hosts = folder, program.absolute(), hosts
        self.peers, self.count = [], 0
        self.latest, self.moved, self.gap = -1, time.monotonic(), 0.0
        folder.mkdir()
        (folder / "run.toml").write_text(CONFIG.format(steps=steps, every=CHECKPOINT_EVERY))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for peer in self.peers:
            peer.process.kill()
        for peer in self.peers:
            peer.process.wait()

    def start(self, peers, options=lambda number: []):
        """`options` are those of a peer, by its number."""
        self.join(options(0))
        deadline = time.monotonic() + LONGEST_STEP
        while not self.peers[0].address():
            if time.monotonic() > deadline or self.peers[0].process.poll() is not None:
                sys.exit("error: the first peer does not start: " + self.peers[0].log.read_text())
            time.sleep(0.1)
        for number in range(1, peers):
            self.join(options(number))
        self.moved = time.monotonic()

    def join(self, options=()):
        known = [peer.address() for peer in self.peers if not peer.is_stopped and peer.address()]
        self.peers.append(Peer(self, self.count, known[:3], options))
        self.count += 1

    def page(self):
        """What a peer tells of the swarm; None if none answers."""
        for peer in self.peers:
            if peer.is_stopped or peer.process.poll() is not None or not peer.address():
                continue
            if found := self.page_of(peer):
                return found
        return None

    def page_of(self, peer):
        """What this peer tells of the swarm; None if it does not answer."""
        done = subprocess.run([*peer.host, self.program, "swarm", "monitor", "--once", "--json", "--timeout=3", "--peer",
                               peer.address()], capture_output=True, text=True, preexec_fn=end_with_parent)
        return json.loads(done.stdout) if done.returncode == 0 else None

    def watch(self):
        """Looks at the swarm after a second, and returns its page. Ends the script if it makes no steps."""
        time.sleep(1)
        page = self.page()
        now = time.monotonic()
        self.gap = max(self.gap, now - self.moved)
        if page is not None and page["step"] > self.latest:
            self.latest, self.moved = page["step"], now
        if now - self.moved > LONGEST_STEP:
            sys.exit(f"error: no step after {self.latest} for {now - self.moved:.0f} s")
        return page

    def settle(self):
        """Waits until all peers have one state, and returns the first step after it that all have saved."""
        for peer in self.peers:
            peer.go_on()
        deadline = time.monotonic() + 4 * LONGEST_STEP
        since = None
        while time.monotonic() < deadline:
            page = self.watch()
            peers = page["peers"] if page else []
            if since is None and len(peers) == len(self.peers) and \
                    all(peer["step"] >= page["step"] - 1 and not peer["is_partial"] for peer in peers):
                since = page["step"] + CHECKPOINT_EVERY
            saved = [set(peer.saved()) for peer in self.peers]
            common = [step for step in set.intersection(*saved) if since is not None and step > since]
            if common:
                return min(common)
        sys.exit("error: the peers that are left do not come to one state, and a checkpoint of it")

    def compare(self, step):
        """Ends the script unless all peers have the same weights at a step, or at their last one."""
        digests = {}
        for peer in self.peers:
            saved = peer.saved()
            at = max(saved) if step is None else step
            digests.setdefault((at, tensors_digest(saved[at])), []).append(peer.name)
        if len(digests) != 1:
            sys.exit(f"error: peers differ: {digests}")
        return next(iter(digests))[0]

    def loss(self, peer):
        """The validation loss of the last checkpoint of a peer, and the step of it."""
        done = subprocess.run([self.program, "validate", "run.toml", f"--run.name={peer.name}", "--trainer.ckpt_path=last",
                               "--trainer.limit_val_batches=1.0"], cwd=self.folder, capture_output=True, text=True,
                              preexec_fn=end_with_parent)
        found = re.search(r"val(?:idation)?[/ ]loss\D+([0-9.]+)", done.stdout + done.stderr)
        if done.returncode != 0 or not found:
            sys.exit(f"error: no loss of {peer.name}: {done.stdout}{done.stderr}")
        return float(found[1]), int(re.search(r"step=(\d+)", os.readlink(peer.checkpoints / "last"))[1])

    def end(self):
        """Asks all peers to save and end."""
        for peer in self.peers:
            peer.process.terminate()
        self.expect(STOPPED, LONGEST_STEP)

    def train_to_end(self):
        """Waits for the ends of all runs, as long as the swarm makes steps."""
        while any(peer.process.poll() is None for peer in self.peers):
            self.watch()
        self.expect(0, 0)

    def expect(self, expected, seconds):
        deadline = time.monotonic() + seconds
        for peer in self.peers:
            try:
                code = peer.process.wait(max(0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                code = "nothing in time"
            if code != expected:
                sys.exit(f"error: {peer.name} ended with {code}:\n{peer.log.read_text()[-3000:]}")


class Firewall:
    """A rule of nft for what comes to a host of bench/hosts.py. The words `prefix` run a command there."""

    def __init__(self, prefix, rule):
        self.prefix = prefix
        if not shutil.which("nft"):
            sys.exit("error: the firewall is made by nft; got no nft (install Debian's nftables)")
        self.nft("add", "table", "inet", "wall")
        self.nft("add", "chain", "inet", "wall", "in", "{ type filter hook input priority 0; }")
        self.nft("add", "rule", "inet", "wall", "in", rule)

    def nft(self, *words):
        return subprocess.run([*self.prefix, "nft", *words], check=True, stdout=subprocess.PIPE, text=True).stdout

    def refused(self):
        """The packets that a rule with a counter has dropped."""
        rules = json.loads(self.nft("-j", "list", "table", "inet", "wall"))["nftables"]
        return sum(part["counter"]["packets"] for entry in rules if "rule" in entry
                   for part in entry["rule"]["expr"] if "counter" in part)

    def open(self):
        self.nft("delete", "table", "inet", "wall")
