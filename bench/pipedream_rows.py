"""The rows of Table 1 of PipeDream (Narayanan et al. 2018, arXiv 1806.03377), profiles scaled to its clusters, and their
simulation (docs/pipedream.md)."""
import json
import pathlib
import re
import subprocess

from training_ranks import TROIKA

MINIBATCH = 32
S2VT_MINIBATCH = 80
PROFILED_MINIBATCH = 128
# Float32 FLOP/s by the makers' data sheets, and bits per second, of the clusters of the paper. The authors' profiles
# have the rate of a V100: 190 samples of VGG-16 a second.
PROFILED_FLOPS = 15.7e12
CLUSTERS = {"A": {"flops": 6.7e12, "bandwidth": 25e9 / 8}, "B": {"flops": 15.7e12, "bandwidth": 10e9 / 8}}
S2VT_EFFICIENCY = 0.4
STEPS = 100

# Table 1: model, machines, cluster, speed-up of data parallelism (BSP) over one machine, configuration, speed-up of
# PipeDream over one machine and over BSP, share of communication that is saved.
ROWS = [("VGG16", "vgg16", 4, "A", 1.47, "2-1-1", 3.14, 2.13, 0.90),
        ("VGG16", "vgg16", 8, "A", 2.35, "7-1", 7.04, 2.99, 0.95),
        ("VGG16", "vgg16", 16, "A", 3.28, "9-5-1-1", 9.86, 3.00, 0.91),
        ("VGG16", "vgg16", 8, "B", 1.36, "7-1", 6.98, 5.12, 0.95),
        ("Inception-v3", "inception_v3", 8, "A", 7.66, "8", 7.66, 1.00, 0.00),
        ("Inception-v3", "inception_v3", 8, "B", 4.74, "7-1", 6.88, 1.45, 0.47),
        ("S2VT", None, 4, "A", 1.10, "2-1-1", 3.34, 3.01, 0.95)]


class Graph:
    """Blocks in a topological order, with the blocks that each reads."""

    def __init__(self, blocks, reads):
        self.blocks, self.reads = blocks, reads

    def seconds(self, begin=0, end=None):
        return sum(block["seconds"] for block in self.blocks[begin:end])

    def parameters(self, begin=0, end=None):
        return sum(block["parameter_bytes"] for block in self.blocks[begin:end])

    def crossing(self, cut):
        """The bytes of outputs of blocks before the cut that blocks after it read."""
        read = {i for reader in range(cut, len(self.blocks)) for i in self.reads[reader] if i < cut}
        return sum(self.blocks[i]["output_bytes"] for i in read)


def number(text):
    return sum(float(part) for part in text.strip("[]").split(";"))


def read_graph(path, flops):
    nodes, edges = {}, []
    line_of_node = re.compile(r"(node\d+) -- (.*) -- forward_compute_time=(\S+), backward_compute_time=(\S+), "
                              r"activation_size=(.+), parameter_size=(\S+)")
    for line in open(path):
        if line.startswith("\t"):
            edges.append(line.strip().split(" -- "))
            continue
        name, layer, forward, backward, output, parameters = line_of_node.match(line).groups()
        is_input = layer.startswith("Input")
        share = MINIBATCH / PROFILED_MINIBATCH
        milliseconds = 0 if is_input else float(forward) + float(backward)
        nodes[name] = {"name": name,
                       "forward": 0 if is_input else float(forward) / (milliseconds or 1),
                       "seconds": milliseconds * 1e-3 * share * PROFILED_FLOPS / flops,
                       "output_bytes": number(output) * share,
                       "parameter_bytes": float(parameters.split(" ")[0])}
    order, rest = [], list(nodes)
    reads_of = {name: [a for a, b in edges if b == name] for name in nodes}
    while rest:
        name = next(name for name in rest if all(one in order for one in reads_of[name]))
        order.append(name)
        rest.remove(name)
    place = {name: i for i, name in enumerate(order)}
    return Graph([nodes[name] for name in order], [[place[one] for one in reads_of[name]] for name in order])


def s2vt(flops):
    """Venugopalan et al. 2015, arXiv 1505.00487: 80 frames of 4096 features, two LSTMs of 1000 units, words of 500
    numbers; a vocabulary of 12594 words and captions of 20 words."""
    frames, words, vocabulary, width, hidden, features = 80, 20, 12594, 500, 1000, 4096
    samples = S2VT_MINIBATCH
    layers = [("frames", features * width, frames, width), ("lstm1", 4 * hidden * (width + hidden), frames, hidden),
              ("lstm2", 4 * hidden * (hidden + width + hidden) + vocabulary * width, frames, hidden),
              ("words", vocabulary * hidden, words, vocabulary)]
    blocks = []
    for name, parameters, times, outputs in layers:
        used = parameters - (vocabulary * width if name == "lstm2" else 0)  # an embedding is only read
        blocks.append({"name": name, "forward": 1 / 3,
                       "seconds": 6 * used * times * samples / (flops * S2VT_EFFICIENCY),
                       "output_bytes": 4 * samples * times * outputs, "parameter_bytes": 4 * parameters})
    return Graph(blocks, [[i - 1] if i > 0 else [] for i in range(len(blocks))])


def profile_of(graph, cuts=None):
    """A profile of the blocks or, with the cuts of stages, of one block for each stage."""
    if cuts is None:
        parts = [(i, i + 1) for i in range(len(graph.blocks))]
        edges = [[graph.blocks[i]["name"], graph.blocks[reader]["name"]]
                 for reader in range(len(graph.blocks)) for i in graph.reads[reader]]
        outputs = [block["output_bytes"] for block in graph.blocks]
    else:
        parts = list(zip([0] + cuts, cuts + [len(graph.blocks)]))
        edges = [[f"stage{i}", f"stage{i + 1}"] for i in range(len(parts) - 1)]
        outputs = [graph.crossing(cut) for cut in cuts] + [0]
    blocks = []
    for i, (begin, end) in enumerate(parts):
        forward = sum(block["forward"] * block["seconds"] for block in graph.blocks[begin:end])
        backward = graph.seconds(begin, end) - forward
        blocks.append({"name": graph.blocks[i]["name"] if cuts is None else f"stage{i}", "forward_seconds": forward,
                       "backward_input_seconds": backward / 2, "backward_weight_seconds": backward / 2,
                       "output_bytes": outputs[i], "saved_bytes": 0,
                       "parameter_bytes": graph.parameters(begin, end)})
    return {"blocks": blocks, "edges": edges}


def best_cuts(graph, replicas, bandwidth):
    """The cuts that make the slowest of stages, averages and messages the fastest."""
    blocks, stages = len(graph.blocks), len(replicas)
    seconds, parameters, crossing = [0], [0], [graph.crossing(cut) for cut in range(blocks + 1)]
    for block in graph.blocks:
        seconds.append(seconds[-1] + block["seconds"])
        parameters.append(parameters[-1] + block["parameter_bytes"])

    def stage(begin, end, r):
        average = 4 * (r - 1) * (parameters[end] - parameters[begin]) / (r * bandwidth)
        return max(seconds[end] - seconds[begin], average) / r

    best = {(0, 0): (0.0, [])}
    for k, r in enumerate(replicas):
        for end in range(k + 1, blocks - (stages - 1 - k) + 1):
            if k == stages - 1 and end != blocks:
                continue
            found = None
            for begin in range(k, end):
                if (k, begin) not in best:
                    continue
                before, cuts = best[k, begin]
                links = 0 if k == 0 else 2 * crossing[begin] / (bandwidth * min(r, replicas[k - 1]))
                time = max(before, links, stage(begin, end, r))
                if found is None or time < found[0]:
                    found = (time, cuts + ([begin] if k > 0 else []))
            best[k + 1, end] = found
    return best[stages, blocks][1]


class Simulator:
    """Runs the program in a folder."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)

    def write(self, name, text):
        (self.folder / name).write_text(text)
        return name

    def run(self, *arguments):
        subprocess.run([TROIKA, *arguments, "--json", "output.json"], cwd=self.folder, check=True,
                       stdout=subprocess.DEVNULL)
        return json.loads((self.folder / "output.json").read_text())

    def choose(self, graph, machines, bandwidth):
        """The replicas of the stages that PipeDream's cost model chooses, as published: the maximum of computing
        and averaging."""
        found = self.run("plan", "--profile", self.write("profile.json", json.dumps(profile_of(graph))), "--machines",
                         str(machines), "--bandwidth", repr(bandwidth), "--cost-model", "pipedream-max",
                         "--compression-ratio", "1")
        return [stage["replicas"] for stage in found["stages"]]

    def write_plan(self, replicas, in_flight, stages):
        """`stages`: the names of the blocks of each. Returns the minibatches of a step."""
        minibatches, is_even = max(replicas), len(set(replicas)) == 1
        # Replicas of an even mesh have minibatches of their own, others take them in turns.
        own = 1 if is_even else minibatches
        axes = f'pipeline={len(replicas)} data={replicas[0] if is_even else text_of(replicas)}'
        self.write("plan.toml", f'[mesh]\naxes = "{axes}"\n[schedule]\nname = "pipedream"\nmicro_batches = {own}\n'
                   f'in_flight = {in_flight}\n'
                   f'[stages]\ncut = "{"|".join(",".join(names) for names in stages)}"\n')
        return minibatches

    def write_cluster(self, machines, bandwidth, latency=0.0):
        self.write("cluster.toml", f"[links.network]\nlatency = {latency!r}\nbandwidth = {bandwidth!r}\n" + "".join(
            f'[[devices]]\nhost = "host-{i}"\n' for i in range(machines)))

    def seconds_of_step(self, profile, steps, *options):
        self.write("profile.json", json.dumps(profile))
        return self.run("simulate", "--plan", "plan.toml", "--profile", "profile.json", "--cluster", "cluster.toml", "--steps",
                        str(steps), *options)

    def simulate(self, graph, replicas, bandwidth, in_flight=1, trace=None):
        """Returns minibatches a second, and the bytes that machines send for each minibatch. Writes a trace to `trace`."""
        self.write_cluster(sum(replicas), bandwidth)
        if len(replicas) == 1:
            minibatches = replicas[0]
            self.write("plan.toml", f'[mesh]\naxes = "data={minibatches}"\n')
        else:
            names, cuts = [block["name"] for block in graph.blocks], best_cuts(graph, replicas, bandwidth)
            minibatches = self.write_plan(replicas, in_flight,
                                          [names[begin:end] for begin, end in zip([0] + cuts, cuts + [None])])
        found = self.seconds_of_step(profile_of(graph), STEPS, *(["--trace", trace] if trace else []))
        sent = sum(link["bytes"] for link in found["links"] if link["name"].endswith("out"))
        return minibatches / found["step_seconds"], sent / minibatches

    def fitted(self, graph, machines, speed_up):
        """The bandwidth at which data parallelism has this speed-up over one machine."""
        least, most = 1e7, 1e11
        for _ in range(24):
            middle = (least * most) ** 0.5
            rate, _ = self.simulate(graph, [machines], middle)
            least, most = (least, middle) if rate * graph.seconds() > speed_up else (middle, most)
        return (least * most) ** 0.5


def text_of(replicas):
    return "-".join(map(str, replicas))


def rows_of(words):
    keys = [f"{row[0]}-{row[2]}{row[3]}" for row in ROWS]
    return [(key, *row) for key, row in zip(keys, ROWS) if not words or any(word in key for word in words.split(","))]


def graph_of(folder, profile, cluster):
    flops = CLUSTERS[cluster]["flops"]
    return read_graph(f"{folder}/{profile}/graph.txt", flops) if profile else s2vt(flops)


def replicas_of(config):
    return [int(replicas) for replicas in config.split("-")]
