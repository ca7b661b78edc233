"""Predicted and measured steps of `troika train` on 2 processes of this machine, for the scripts beside this file."""
import json
import pathlib
import statistics
import subprocess
import tempfile

from training_ranks import TROIKA, fail

MLP = {"model.name": "mlp", "model.hidden_width": 1024, "model.hidden_layers": 6, "data.global_batch_size": 128,
       "optim.name": "adamw"}
RESNET = {"model.name": "resnet18", "data.global_batch_size": 32, "optim.name": "sgd"}
RESNET50 = {**RESNET, "model.name": "resnet50", "data.global_batch_size": 16}
VGG = {"model.name": "vgg16", "data.global_batch_size": 8, "optim.name": "sgd"}
# At the default rate it diverges, and products of subnormal numbers take several times as long.
GPT = {"model.name": "gpt", "optim.lr": 1e-4, "model.layers": 6, "model.width": 256, "model.heads": 4, "data.name": "text",
       "data.context": 128, "data.global_batch_size": 16, "optim.name": "adamw"}


def with_options(base, **more):
    return {**base, **{key.replace("__", "."): value for key, value in more.items()}}


def strategy(base, name, **more):
    return with_options(base, trainer__strategy=name, **more)


# A pipeline's global batch is a micro-batch of its replicas.
def pipeline(base, schedule, micro_batches=4, **more):
    batch = base["data.global_batch_size"] // micro_batches
    return strategy(base, schedule, pipeline__micro_batches=micro_batches, data__global_batch_size=batch, **more)


# Seconds; several times as long as a step, so that few steps contain a stop.
SLICE = 4


def signal_session(leader, name):
    """Ranks have process groups of their own, but the session of the command that starts them."""
    subprocess.run(["pkill", f"-{name}", "--session", str(leader.pid)], check=False)


def side_by_side(name, folder, *commands):
    """Runs commands of `troika` at once, each stopped while another has its slice of time, so that all meet the same
    speeds of a machine whose speed changes. A time that a stop falls into is an outlier, which medians leave out."""
    with tempfile.TemporaryDirectory(prefix="predictions-output-") as output:
        outputs = [pathlib.Path(output) / str(number) for number in range(len(commands))]
        running = []
        for words, path in zip(commands, outputs):
            with open(path, "w", encoding="utf-8") as file:
                running.append(subprocess.Popen([TROIKA, *map(str, words)], cwd=folder, stdout=file,
                                                stderr=subprocess.STDOUT, start_new_session=True))
            signal_session(running[-1], "STOP")
        try:
            while any(process.poll() is None for process in running):
                for process in running:
                    if process.poll() is not None:
                        continue
                    signal_session(process, "CONT")
                    try:
                        process.wait(SLICE)
                    except subprocess.TimeoutExpired:
                        signal_session(process, "STOP")
        finally:
            for process in running:
                if process.poll() is None:
                    signal_session(process, "KILL")
        for process, words, path in zip(running, commands, outputs):
            if process.returncode != 0:
                fail(f"{name}: troika {' '.join(map(str, words))} ended with {process.returncode}: "
                     f"{path.read_text()[-2000:]}")


CLUSTER = '[[devices]]\nhost = "here"\ncount = 2\n'


def troika(name, folder, *words):
    done = subprocess.run([TROIKA, *map(str, words)], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          text=True)
    if done.returncode != 0:
        fail(f"{name}: troika {' '.join(map(str, words))} ended with {done.returncode}: {done.stderr[-2000:]}")


class Turns:
    """Runs a configuration in a folder."""

    def __init__(self, name, options, folder, seconds, steps):
        self.name = name
        self.folder = folder
        self.seconds = seconds
        self.steps = steps
        words = {"trainer.threads": 1, "trainer.enable_progress_bar": "false", "data.workers": 0, **options}
        self.words = [f"--{key}={value}" for key, value in words.items()]
        if options.get("data.name") == "text":
            text = folder / "text.txt"
            text.write_text("the quick brown fox jumps over the lazy dog. " * 20000)
            self.words.append(f"--data.files={text}")
        (folder / "cluster.toml").write_text(CLUSTER)

    def troika(self, *words):
        troika(self.name, self.folder, *words)

    def training(self, *words):
        return ["train", "--trainer.devices=2", "--run.name=run", "--run.overwrite=true", "--trainer.max_epochs=-1",
                f"--trainer.max_steps={self.steps}", "--trainer.limit_val_batches=0", "--checkpoint.enabled=false",
                *self.words, *words]

    def summary(self):
        return json.loads((self.folder / "runs" / "run" / "summary.json").read_text())

    def train(self, *words):
        """The summary of a run."""
        self.troika(*self.training(*words))
        return self.summary()

    def turn(self):
        """Predicted and measured: seconds of a step, bytes of a rank."""
        side_by_side(self.name, self.folder, ["profile", "--seconds", self.seconds, "--trainer.devices=2", *self.words],
                     self.training())
        self.troika("simulate", "--profile", "profile.json", "--cluster", "cluster.toml", "--json", "simulated.json",
                    *self.words)
        simulated = json.loads((self.folder / "simulated.json").read_text())
        summary = self.summary()
        return {"predicted": simulated["step_seconds"],
                "measured": summary["median_step_milliseconds"] / 1e3,
                "predicted bytes": max(summary["predicted_tensor_bytes"] or
                                       [rank["peak_bytes"] for rank in simulated["ranks"]]),
                "measured bytes": max(summary["peak_tensor_bytes"])}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass


def spread(samples):
    middle = statistics.median(samples)
    return statistics.median(abs(sample - middle) for sample in samples) / middle
