#!/usr/bin/env python3
"""The checks of scripts/test-gpu: runs of the program on GPUs, compared with each other, and the cases of test_gpu.

    run_checks.py --report FILE --build FOLDER --devices N [--rehearse]

Writes the report after each check, so that it also tells of a run that is interrupted. --rehearse runs on processors."""
import argparse
import json
import pathlib
import platform
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
# The steps of a check, and of a benchmark.
STEPS = 40
BENCH_STEPS = 200

SMALL = ["--model.name=mlp", "--data.global_batch_size=64", f"--trainer.max_steps={STEPS}", "--optim.name=adamw",
         "--optim.lr=0.001", "--optim.schedule=constant"]


class Failed(Exception):
    """Why a check did not pass."""


class Checks:
    def __init__(self, arguments):
        self.report_file = pathlib.Path(arguments.report)
        self.build = (ROOT / arguments.build).resolve()
        self.devices = arguments.devices
        self.rehearses = arguments.rehearse
        self.rows = []
        self.folder = tempfile.TemporaryDirectory()

    def train(self, name, *options, devices=1, accelerator=None, resumes=False):
        """The summary of a run and what it printed."""
        accelerator = accelerator or ("cpu" if self.rehearses else "gpu")
        command = [self.build / "troika/cli/troika", "train", *options, f"--run.folder={self.folder.name}/{name}",
                   "--run.name=run", f"--trainer.accelerator={accelerator}", f"--trainer.devices={devices}",
                   "--trainer.enable_progress_bar=false"]
        if not resumes:
            command.append("--run.overwrite=true")
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=1800)
        if done.returncode != 0:
            raise Failed(f"exit code {done.returncode}: {' | '.join(done.stdout.strip().splitlines()[-3:])}")
        return json.loads(pathlib.Path(self.folder.name, name, "run/summary.json").read_text()), done.stdout

    def check(self, name, body, needs=1):
        """Runs one check, which returns details or throws Failed."""
        start = time.monotonic()
        if self.devices < needs:
            result, detail = "not run", f"needs {needs} GPUs; {self.devices} here"
        else:
            try:
                result, detail = "passed", body()
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
                          stderr=subprocess.STDOUT, text=True, timeout=1800)
    lines = done.stdout.strip().splitlines() or ["no output"]
    if done.returncode != 0:
        raise Failed(" / ".join(line for line in lines if "FAILED" in line) or lines[-1])
    return lines[-1]


def nccl_by_default(checks, loss):
    detail, output = checks.loss_close_to(loss, 1e-3, *SMALL, name="ddp", devices=checks.devices)
    if not checks.rehearses and "+nccl" not in output:
        raise Failed("the run does not say that its back end has nccl")
    return detail


def resumed(checks, loss):
    half = [option for option in SMALL if "max_steps" not in option] + [f"--trainer.max_steps={STEPS // 2}"]
    checks.train("resumed", *half)
    return checks.loss_close_to(loss, 1e-6, *SMALL, "--trainer.ckpt_path=last", name="resumed", resumes=True)[0]


def throughput(checks, model, precision, devices):
    batch = 8 if checks.rehearses else 64
    steps = 4 if checks.rehearses else BENCH_STEPS
    summary, _ = checks.train("bench", f"--model.name={model}", f"--data.batch_size={batch}",
                              f"--trainer.max_steps={steps}", f"--trainer.precision={precision}",
                              "--trainer.limit_val_batches=1", "--checkpoint.enabled=false", devices=devices)
    return summary["samples_per_second"]


def scaling(checks, model, precision):
    # One after the other, three times, so that a clock that changes meets both.
    turns = [(throughput(checks, model, precision, 1), throughput(checks, model, precision, checks.devices))
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
    checks.check("ddp, nccl by default", lambda: nccl_by_default(checks, loss), needs=2)
    for strategy in ("zero1", "zero2", "zero3"):
        checks.check(strategy, close(1e-3, f"--trainer.strategy={strategy}", **several), needs=2)
    checks.check("zero2, optimizer offloaded",
                 close(1e-3, "--trainer.strategy=zero2", f"--offload.optimizer={folder}/zero2", **several), needs=2)
    checks.check("ddp, through the host", close(1e-3, "--comm.backend=tcp", "--comm.protection=encrypted", **several),
                 needs=2)
    checks.check("dp", close(1e-3, "--trainer.strategy=dp", **several), needs=2)
    for strategy in ("local_sgd", "diloco"):
        checks.check(strategy, close(0.5, f"--trainer.strategy={strategy}", f"--{strategy}.period=4", **several), needs=2)
    models = ["mlp"] if checks.rehearses else ["resnet18", "gpt"]
    precisions = ["32"] if checks.rehearses else ["32", "bf16-mixed", "16-mixed"]
    for model in models:
        for precision in precisions:
            checks.check(f"benchmark: {model} in {precision}",
                         lambda model=model, precision=precision: scaling(checks, model, precision), needs=2)


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
