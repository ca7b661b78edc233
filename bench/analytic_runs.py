"""Simulated runs of GPTs from profiles of gpt_profile.py, for the scripts beside this file."""
import json
import pathlib
import resource
import subprocess
import time

from training_ranks import fail


def cut_of(layers, stages):
    """The cut of a profile of gpt_profile() into stages of about equal numbers of layers."""
    names = ["embedding"] + [f"layer{i}" for i in range(layers)] + ["head"]
    ends = [1 + layers * (stage + 1) // stages for stage in range(stages)]
    ends[-1] = len(names)
    return "|".join(",".join(names[begin:end]) for begin, end in zip([0] + ends, ends))


def cluster_text(device, hosts, devices_of_host, links):
    """`links`: for each level the seconds of its latency, and its bytes a second."""
    return "".join(f"[links.{level}]\nlatency = {latency}\nbandwidth = {bandwidth}\n"
                   for level, (latency, bandwidth) in links.items()) + "".join(
        f'[[devices]]\nhost = "node-{i}"\ncount = {devices_of_host}\nflops = {device["flops"]}\n'
        f'memory_bytes = {device["memory_bytes"]}\n' for i in range(hosts))


class Simulator:
    def __init__(self, program, folder):
        self.program, self.folder = program, pathlib.Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)

    def run(self, name, *arguments):
        """Returns the program's output, its seconds, and the most bytes of it and of all programs before."""
        begin = time.time()
        ended = subprocess.run([self.program, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        seconds = time.time() - begin
        if ended.returncode != 0:
            fail(f"row {name}: {ended.stdout.strip()}")
        return ended.stdout, seconds, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024

    def simulate(self, name, profile, cluster, plan):
        """Returns the results, and the seconds and bytes that the program took."""
        files = {end: self.folder / f"{name.replace(' ', '-')}.{end}"
                 for end in ("profile.json", "cluster.toml", "plan.toml", "results.json")}
        files["profile.json"].write_text(json.dumps(profile))
        files["cluster.toml"].write_text(cluster)
        files["plan.toml"].write_text(plan)
        _, seconds, most = self.run(name, "simulate", "--plan", files["plan.toml"], "--profile", files["profile.json"],
                                    "--cluster", files["cluster.toml"], "--json", files["results.json"])
        return json.loads(files["results.json"].read_text()), seconds, most
