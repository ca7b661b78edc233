#!/usr/bin/python3
"""run_console.py DOCUMENT: types what the document's ```console blocks say, in the current folder, one
command after another, and compares what is printed: standard output and error as a terminal shows them.
Any number stands for any other, and a line or an end of a line of `...` for anything. Ends with 1 and
the difference, or where a command fails."""
import re
import subprocess
import sys

NUMBER = re.compile(r"\d+(\.\d+)*(e[+-]?\d+)?")


def commands(document):
    """Pairs of a command, which may span lines up to END or after a backslash, and the lines expected."""
    for block in re.findall(r"^```console\n(.*?)^```", document, re.S | re.M):
        lines = block.splitlines()
        while lines:
            command = lines.pop(0)
            if not command.startswith("$ "):
                sys.exit(f"error: a block begins with {command!r}, expected a line with $")
            command = command[2:]
            ends = re.search(r"<<(\w+)", command)
            while command.endswith("\\") or (ends and command.splitlines()[-1] != ends[1]):
                command += "\n" + lines.pop(0)
            expected = []
            while lines and not lines[0].startswith("$ "):
                expected.append(lines.pop(0))
            yield command, expected


def pattern(expected):
    """What the whole output must match, numbers being masked."""
    parts = []
    for line in expected:
        if line == "...":
            parts.append(r"(.*\n)*?")
        elif line.endswith("..."):
            parts.append(re.escape(line[:-3]) + r".*\n")
        else:
            parts.append(re.escape(line) + r"\n")
    return "".join(parts)


def masked(text):
    return NUMBER.sub("#", text)


found = 0
with open(sys.argv[1]) as file:
    document = file.read()
for command, expected in commands(document):
    done = subprocess.run(["bash", "-c", command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, errors="replace", timeout=120)
    wanted = [masked(line) for line in expected]
    if done.returncode != 0 or not re.fullmatch(pattern(wanted), masked(done.stdout)):
        sys.exit(f"error: {sys.argv[1]}: $ {command}\nended with {done.returncode} and printed\n{done.stdout}\n"
                 "where the document has\n" + "\n".join(expected))
    found += 1
if found == 0:
    sys.exit(f"error: {sys.argv[1]} has no commands")
print(f"{found} commands")
