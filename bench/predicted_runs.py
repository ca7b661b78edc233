"""Predicted and measured steps of `troika train` on 2 processes of this machine, for the scripts beside this file."""
import json
import statistics
import subprocess

from training_ranks import TROIKA, fail

MLP = {"model.name": "mlp", "model.hidden_width": 1024, "model.hidden_layers": 6, "data.global_batch_size": 128,
       "optim.name": "adamw"}
RESNET = {"model.name": "resnet18", "data.global_batch_size": 32, "optim.name": "sgd"}
RESNET50 = {**RESNET, "model.name": "resnet50", "data.global_batch_size": 16}
VGG = {"model.name": "vgg16", "data.global_batch_size": 32, "optim.name": "sgd"}
GPT = {"model.name": "gpt", "model.layers": 6, "model.width": 256, "model.heads": 4, "data.name": "text",
       "data.context": 128, "data.global_batch_size": 16, "optim.name": "adamw"}


def with_options(base, **more):
    return {**base, **{key.replace("__", "."): value for key, value in more.items()}}


def strategy(base, name, **more):
    return with_options(base, trainer__strategy=name, **more)


# A pipeline's global batch is a micro-batch of its replicas.
def pipeline(base, schedule, micro_batches=4, **more):
    batch = base["data.global_batch_size"] // micro_batches
    return strategy(base, schedule, pipeline__micro_batches=micro_batches, data__global_batch_size=batch, **more)


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

    def train(self, *words):
        """The summary of a run."""
        self.troika("train", "--trainer.devices=2", "--run.name=run", "--run.overwrite=true", "--trainer.max_epochs=-1",
                    f"--trainer.max_steps={self.steps}", "--trainer.limit_val_batches=0", "--checkpoint.enabled=false",
                    *self.words, *words)
        return json.loads((self.folder / "runs" / "run" / "summary.json").read_text())

    def turn(self):
        """Predicted and measured: seconds of a step, bytes of a rank."""
        self.troika("profile", "--seconds", self.seconds, "--trainer.devices=2", *self.words)
        self.troika("simulate", "--profile", "profile.json", "--cluster", "cluster.toml", "--json", "simulated.json",
                    *self.words)
        simulated = json.loads((self.folder / "simulated.json").read_text())
        summary = self.train()
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
