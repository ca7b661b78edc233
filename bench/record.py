"""Records of benchmarks, in the format of troika/base/benchmark_record.h, for the scripts beside this file.

They are kept in bench/results, one file a run, for bench/compare."""
import datetime
import json
import math
import os
import pathlib
import platform
import re
import statistics
import subprocess
import sys

from training_ranks import ROOT, TROIKA

RESULTS = ROOT / "bench" / "results"


def row(name, unit, samples, better="lower", **details):
    """The median and the bounds that hold the true one with 95 % confidence; of fewer than six samples the least and
    the greatest."""
    ordered = sorted(samples)
    count = len(ordered)
    below = max(0, math.floor((count - 1.96 * math.sqrt(count)) / 2)) if count >= 6 else 0
    return {"name": name, "unit": unit, "better": better, "median": statistics.median(ordered), "low": ordered[below],
            "high": ordered[count - 1 - below], "samples": count, "details": details}


def show(row, digits=0):
    """"33 [24, 57]": the median and its bounds."""
    return f"{row['median']:.{digits}f} [{row['low']:.{digits}f}, {row['high']:.{digits}f}]"


def versions(troika=TROIKA):
    """Of the program that was built, and of the tree: "troika 1.0.0, LibTorch 1.13.1"."""
    words = subprocess.run([troika, "version"], check=True, stdout=subprocess.PIPE, text=True).stdout.split()
    commit = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=ROOT, stdout=subprocess.PIPE,
                            stderr=subprocess.DEVNULL, text=True).stdout.strip()
    return {"troika": words[1].rstrip(","), "libtorch": words[3], "commit": commit}


def save(benchmark, rows, troika=TROIKA, **peers):
    """Writes the record, and prints where. `troika` is the program that was measured, `peers` are versions of other
    libraries."""
    model = re.search(r"model name\s*:\s*(.*)", pathlib.Path("/proc/cpuinfo").read_text())
    now = datetime.datetime.now(datetime.timezone.utc)
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{benchmark}-{now:%Y%m%d-%H%M%S}.json"
    path.write_text(json.dumps(
        {"benchmark": benchmark, "date": f"{now:%Y-%m-%dT%H:%M:%SZ}",
         "machine": {"cpu": model[1] if model else "unknown", "cores": os.cpu_count(), "kernel": platform.release()},
         "versions": {**versions(troika), **peers}, "command": sys.argv, "rows": rows}, indent=2) + "\n")
    print(path)
