#!/usr/bin/env python3
"""The checks of scripts/test-gpu: runs of the program on GPUs, compared with each other, and the cases of test_gpu.

    run_checks.py --report FILE --build FOLDER --devices N [--rehearse]

Writes the report after each check, so that it also tells of a run that is interrupted. --rehearse runs on processors."""
import argparse
import json
import os
import pathlib
import platform
import socket
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
# The steps of a check, and of a benchmark.
STEPS = 40
BENCH_STEPS = 200
# The seconds that a run may take.
PATIENCE = 1800

SMALL = ["--model.name=mlp", "--data.global_batch_size=64", f"--trainer.max_steps={STEPS}", "--optim.name=adamw",
         "--optim.lr=0.001", "--optim.schedule=constant"]
TEXT = ["--data.name=text", f"--data.files={ROOT / 'docs/trainer.md'}"]
# Tensors of GPUs go through the host, because nccl protects no messages.
HOST = ["--comm.backend=tcp", "--comm.protection=encrypted"]
DATA = ("ddp", "zero1", "zero2", "zero3")
LOCAL = ("local_sgd", "diloco")
PIPELINES = ("gpipe", "1f1b", "zb-h1")
# Their steps use gradients of earlier weights. They are compared in float64: with float32, processors of two kinds
# differ by 2e-3 in the loss after these steps, since rounding decides whether some activations are 0.
DELAYED = ("pipedream", "pipedream_2bw")
# Optimizers that step where the parameters are stored, which is the servers' memory, and sums of servers.
SERVED = {"parameter_server": [], "downpour": ["--optim.name=adagrad", "--optim.lr=0.01"], "byteps": []}
FEW = [option for option in SMALL if "model" not in option and "max_steps" not in option] + ["--trainer.max_steps=10"]
LLAMA = ["--model.name=llama", "--model.layers=2", "--model.width=64", "--model.heads=4", *TEXT, "--data.context=64", *FEW,
         "--data.global_batch_size=8", "--trainer.label_smoothing=0.1", "--trainer.z_loss=0.001"]
RESNET = ["--model.name=resnet20", "--data.train_samples=640", "--data.validation_samples=64", *FEW]


def strategy(name):
    """Its options."""
    options = [f"--trainer.strategy={name}"]
    if name in LOCAL:
        return [*options, f"--{name}.{'inner_steps' if name == 'diloco' else 'period'}=4"]
    if name in (*PIPELINES, *DELAYED):
        precision = ["--trainer.precision=64"] if name in DELAYED else []
        return [*options, *precision, "--trainer.accumulate_grad_batches=4", "--data.global_batch_size=16"]
    return options


class Failed(Exception):
    """Why a check did not pass."""


class NotRun(Exception):
    """Why a check cannot be made here."""


def run_ranks(command, count):
    """What rank 0 of `count` ranks printed, each on a machine of its own for all that it knows."""
    variables = dict(os.environ)
    if count > 1:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        variables |= {"WORLD_SIZE": str(count), "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1",
                      "GROUP_WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
                      "TORCHELASTIC_RUN_ID": "check", "OMP_NUM_THREADS": "1"}
    ranks = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=(
        variables | {"RANK": str(rank), "GROUP_RANK": str(rank)} if count > 1 else variables)) for rank in range(count)]
    try:
        outputs = [rank.communicate(timeout=PATIENCE)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    for rank, output in zip(ranks, outputs):
        if rank.returncode != 0:
            lines = output.strip().splitlines()
            errors = [number for number, line in enumerate(lines) if line.startswith("error:")] or [-3]
            raise Failed(f"exit code {rank.returncode}: {' / '.join(lines[errors[0]:][:5])}")
    return outputs[0]


class Checks:
    def __init__(self, arguments):
        self.report_file = pathlib.Path(arguments.report)
        self.build = (ROOT / arguments.build).resolve()
        self.devices = arguments.devices
        self.rehearses = arguments.rehearse
        self.rows = []
        self.folder = tempfile.TemporaryDirectory()

    def train(self, name, *options, devices=1, accelerator=None, resumes=False, sharing=1, servers=0):
        """The summary of a run and what it printed. `sharing` ranks compute on the first GPU together: each takes itself
        for the only one of its machine. With `servers`, one worker trains beside them."""
        accelerator = accelerator or ("cpu" if self.rehearses else "gpu")
        troika = self.build / "troika/cli/troika"
        launch = ["launch", f"--servers={servers}", "--workers=1", troika] if servers else []
        command = [troika, *launch, "train", *options, f"--run.folder={self.folder.name}/{name}",
                   "--run.name=run", f"--trainer.accelerator={accelerator}", f"--trainer.devices={devices}",
                   "--trainer.enable_progress_bar=false"]
        if not resumes:
            command.append("--run.overwrite=true")
        output = run_ranks(command, sharing)
        return json.loads(pathlib.Path(self.folder.name, name, "run/summary.json").read_text()), output

    def check(self, name, body, needs=1):
        """Runs one check, which returns details or throws Failed."""
        start = time.monotonic()
        if self.devices < needs:
            result, detail = "not run", f"needs {needs} GPUs; {self.devices} here"
        else:
            try:
                result, detail = "passed", body()
            except NotRun as reason:
                result, detail = "not run", str(reason)
            except (Failed, OSError, ValueError, KeyError, subprocess.TimeoutExpired) as problem:
                result, detail = "FAILED", str(problem)
        self.rows.append((name, result, detail, time.monotonic() - start))
        print(f"{result:8} {name}: {detail}", flush=True)
        self.write()

    def loss_close_to(self, expected, tolerance, *options, name, **how):
        summary, output = self.train(name, *options, **how)
        loss = summary["validation_loss"]
        text = f"validation loss {loss}, expected {expected} within {tolerance:g}"
        if loss is None or not abs(loss - expected) <= tolerance * max(1.0, abs(expected)):
            raise Failed(text)
        return text, output

    def write(self):
        lines = ["# Troika on GPUs", "",
                 "A rehearsal on processors: nothing here ran on a GPU." if self.rehearses else "", "",
                 f"{time.strftime('%Y-%m-%d %H:%M:%S UTC', time.gmtime())}, {platform.node()}, {platform.platform()}", ""]
        lines += [f"- {line}" for line in self.machine()] + [""]
        lines += ["| check | result | details | seconds |", "|---|---|---|---|"]
        for name, result, detail, seconds in self.rows:
            lines.append(f"| {name} | {result} | {detail.replace('|', '/')} | {seconds:.0f} |")
        failed = [name for name, result, _, _ in self.rows if result == "FAILED"]
        not_run = [name for name, result, _, _ in self.rows if result == "not run"]
        lines += ["", f"{len(self.rows) - len(failed) - len(not_run)} passed, {len(failed)} failed, {len(not_run)} not run", ""]
        self.report_file.parent.mkdir(parents=True, exist_ok=True)
        self.report_file.write_text("\n".join(lines))
        return failed

    def machine(self):
        commands = [[self.build / "troika/cli/troika", "version"], ["git", "-C", ROOT, "describe", "--always", "--dirty"]]
        if not self.rehearses:
            commands.append(["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"])
        for command in commands:
            done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
            yield from done.stdout.strip().splitlines()


def cases(checks):
    done = subprocess.run([checks.build / "tests/gpu/test_gpu", "--gtest_brief=1"], stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, timeout=PATIENCE)
    lines = done.stdout.strip().splitlines() or ["no output"]
    if done.returncode != 0:
        raise Failed(" / ".join(line for line in lines if "FAILED" in line) or lines[-1])
    return lines[-1]


def with_nccl(body):
    def check():
        detail, output = body()
        if "+nccl" not in output:
            raise Failed("the run does not say that its back end has nccl")
        return detail
    return check


def resumed(checks, loss):
    half = [option for option in SMALL if "max_steps" not in option] + [f"--trainer.max_steps={STEPS // 2}"]
    checks.train("resumed", *half)
    return checks.loss_close_to(loss, 1e-6, *SMALL, "--trainer.ckpt_path=last", name="resumed", resumes=True)[0]


def like_processor(checks, *options, **how):
    """The loss of the same run on processors. Convolutions on a GPU round their factors to 10 bits."""
    expected = checks.train("oracle", *options, accelerator="cpu", **how)[0]["validation_loss"]
    return checks.loss_close_to(expected, 1e-2, *options, name="variant", **how)[0]


def profile(checks):
    """Of blocks whose backward passes are split."""
    file = pathlib.Path(checks.folder.name, "profile.json")
    run_ranks([checks.build / "troika/cli/troika", "profile", "--model.name=gpt", "--model.layers=2", *TEXT,
               f"--trainer.accelerator={'cpu' if checks.rehearses else 'gpu'}", "--data.batch_size=4",
               "--seconds=1", f"--output={file}"], 1)
    return f"{len(json.loads(file.read_text())['blocks'])} blocks"


def throughput(checks, model, data, precision, devices):
    batch = 8 if checks.rehearses else 64
    steps = 4 if checks.rehearses else BENCH_STEPS
    summary, _ = checks.train("bench", f"--model.name={model}", *data, f"--data.batch_size={batch}",
                              f"--trainer.max_steps={steps}", f"--trainer.precision={precision}",
                              "--trainer.limit_val_batches=1", "--checkpoint.enabled=false", devices=devices)
    return summary["samples_per_second"]


def beside_pytorch(checks):
    has = "import torch, torchvision, sys; sys.exit(not torch.cuda.is_available())"
    if subprocess.run([sys.executable, "-c", has], stderr=subprocess.DEVNULL).returncode != 0:
        raise NotRun(f"{sys.executable} has no PyTorch with CUDA and torchvision")
    done = subprocess.run([sys.executable, ROOT / "bench/gpu", "--build", checks.build], stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, timeout=PATIENCE)
    lines = done.stdout.strip().splitlines()
    if done.returncode != 0:
        raise Failed(" / ".join(lines[-3:]))
    return " / ".join(" ".join(line.split()) for line in lines)


def speed(checks, model, data, precision):
    if checks.devices > 1:
        return scaling(checks, model, data, precision)
    samples = sorted(throughput(checks, model, data, precision, 1) for _ in range(1 if checks.rehearses else 3))
    return f"{samples[len(samples) // 2]:.0f} samples/s [{samples[0]:.0f}, {samples[-1]:.0f}]"


def scaling(checks, model, data, precision):
    # One after the other, three times, so that a clock that changes meets both.
    turns = [(throughput(checks, model, data, precision, 1), throughput(checks, model, data, precision, checks.devices))
             for _ in range(1 if checks.rehearses else 3)]
    one, all_ = (sorted(values)[len(values) // 2] for values in zip(*turns))
    return (f"1: {one:.0f} samples/s, {checks.devices}: {all_:.0f} samples/s, "
            f"{100 * all_ / one / checks.devices:.0f} % of {checks.devices} times as many")


def run(checks):
    folder = checks.folder.name
    several = {"devices": checks.devices}
    for name in ("activations", "optimizer", "zero2"):
        pathlib.Path(folder, name).mkdir()
    to_host = f"{folder}/activations" if checks.rehearses else "host"
    if not checks.rehearses:
        checks.check("cases of test_gpu", lambda: cases(checks))
    expected = {}

    def one_device():
        expected["loss"] = checks.train("one", *SMALL)[0]["validation_loss"]
        return f"validation loss {expected['loss']}"

    checks.check("one device", one_device)
    if expected.get("loss") is None:
        return
    loss = expected["loss"]

    def close(tolerance, *options, **how):
        return lambda: checks.loss_close_to(loss, tolerance, *SMALL, *options, name="variant", **how)[0]

    checks.check("one device and the processor", close(1e-3, accelerator="cpu"))
    checks.check("resumed from a checkpoint", lambda: resumed(checks, loss))
    checks.check("16-mixed with the loss scaler" if not checks.rehearses else "bf16-mixed in place of 16-mixed",
                 close(0.05, f"--trainer.precision={'bf16-mixed' if checks.rehearses else '16-mixed'}"))
    checks.check("bf16-mixed", close(0.05, "--trainer.precision=bf16-mixed"))
    checks.check("recomputation", close(1e-3, "--trainer.recompute=full"))
    checks.check("activations offloaded", close(1e-3, f"--offload.activations={to_host}"))
    checks.check("optimizer offloaded", close(1e-3, f"--offload.optimizer={folder}/optimizer"))
    def like_one(name, *options, **how):
        """One device's loss; of local and of delayed steps, the loss of as many ranks on processors."""
        def body():
            of = [*SMALL, *strategy(name)]
            expected = loss
            if name in (*LOCAL, *DELAYED):
                ranks = {key: how[key] for key in ("devices", "sharing") if key in how}
                expected = checks.train("oracle", *of, accelerator="cpu", **ranks)[0]["validation_loss"]
            return checks.loss_close_to(expected, 1e-3, *of, *options, name="variant", **how)
        return body

    def detail(body):
        return lambda: body()[0]

    # A world of one rank, whose collectives are calls of NCCL all the same.
    for name in () if checks.rehearses else (*DATA[1:], *LOCAL):
        checks.check(f"1 rank, nccl, {name}", with_nccl(like_one(name, "--comm.backend=tcp")))
    # Ranks that share a GPU exchange through the host; nccl refuses them.
    for name in ("ddp", "local_sgd", "1f1b") if checks.rehearses else (*DATA, "tp", *LOCAL, *PIPELINES, *DELAYED):
        checks.check(f"2 ranks share a device, {name}", detail(like_one(name, *HOST, sharing=2)))
    for name, options in SERVED.items():
        checks.check(f"1 rank and a server, {name}", lambda name=name, options=options: like_processor(
            checks, *SMALL, *strategy(name), *options, servers=1))
    checks.check("llama with terms of the loss and adapters", lambda: like_processor(checks, *LLAMA, "--lora.rank=4"))
    for name, options in ({"llama": LLAMA} if checks.rehearses else {"llama": LLAMA, "resnet20": RESNET}).items():
        checks.check(f"2 ranks share a device, tp, {name}", lambda options=options: like_processor(
            checks, *options, *strategy("tp"), *HOST, sharing=2))
    by_default = like_one("ddp", **several)
    checks.check("ddp, nccl by default", detail(by_default) if checks.rehearses else with_nccl(by_default), needs=2)
    for name in (*DATA[1:], "dp", *LOCAL):
        checks.check(name, detail(like_one(name, **several)), needs=2)
    for name in ("tp", *PIPELINES):
        checks.check(f"{name} on 2 devices", detail(like_one(name, devices=2)), needs=2)
    checks.check("zero2, optimizer offloaded",
                 close(1e-3, "--trainer.strategy=zero2", f"--offload.optimizer={folder}/zero2", **several), needs=2)
    checks.check("ddp, through the host", close(1e-3, *HOST, **several), needs=2)
    checks.check("profile", lambda: profile(checks))
    models = {"mlp": []} if checks.rehearses else {"resnet18": [], "gpt": TEXT}
    precisions = ["32"] if checks.rehearses else ["32", "bf16-mixed", "16-mixed"]
    for model, data in models.items():
        for precision in precisions:
            checks.check(f"benchmark: {model} in {precision}",
                         lambda model=model, data=data, precision=precision: speed(checks, model, data, precision))
    if not checks.rehearses:
        checks.check("benchmark: beside PyTorch", lambda: beside_pytorch(checks))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--report", required=True)
    parser.add_argument("--build", required=True)
    parser.add_argument("--devices", type=int, required=True)
    parser.add_argument("--rehearse", action="store_true")
    checks = Checks(parser.parse_args())
    run(checks)
    failed = checks.write()
    print(f"report: {checks.report_file}")
    if failed:
        print(f"error: [test-gpu] {len(failed)} checks failed: {', '.join(failed)}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
