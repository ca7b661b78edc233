#!/usr/bin/python3
"""check_commands.py ROOT: runs the commands of ```sh and ```console blocks of README.md, CONTRIBUTING.md and docs/ in
ROOT, page by page in the current folder, as commands.toml beside this file says. Ends with 1 and the output of a
command that fails, and where that file and the pages do not have the same commands."""
import pathlib
import re
import subprocess
import sys
import tomllib

root = pathlib.Path(sys.argv[1])
listed = tomllib.loads((pathlib.Path(__file__).parent / "commands.toml").read_text())
BLOCK = re.compile(r"^ *```(sh|console)\n(.*?)^ *```", re.S | re.M)


def commands(page):
    """The commands of a page, with single blanks, without comments, and lines that a backslash continues joined."""
    for kind, block in BLOCK.findall(page.read_text()):
        if kind == "console" and page.name in listed["whole_pages"]:
            continue
        lines = iter(block.splitlines())
        for line in lines:
            if kind == "console" and not line.startswith("$ "):
                continue
            while line.endswith("\\"):
                line = line[:-1] + next(lines)
            command = " ".join(re.sub(r"(^|\s)#\s.*", "", line.removeprefix("$ ")).split())
            if command:
                yield command


def run(command):
    done = subprocess.run(["bash", "-c", command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, errors="replace", timeout=300)
    if done.returncode != 0:
        sys.exit(f"error: $ {command}\nended with {done.returncode} and printed\n{done.stdout}")
    return done.stdout


pages = [root / "README.md", root / "CONTRIBUTING.md", *sorted(root.glob("docs/*.md"))]
found = {command for page in pages for command in commands(page)}
ways = {way: set(listed[way]) for way in ("run", "run_as", "tested_by", "not_run")}
known = [command for way in ways.values() for command in way]
problems = [f"commands.toml lacks: {command}" for command in sorted(found - set(known))]
problems += [f"no page has: {command}" for command in sorted(set(known) - found)]
problems += [f"commands.toml has twice: {command}" for command in sorted({c for c in known if known.count(c) > 1})]
if problems:
    sys.exit("\n".join(["error: the commands of the pages and of commands.toml differ", *problems]))
for command in listed["before"]:
    run(command)
count = 0
for page in pages:
    for command in commands(page):
        if command in ways["run"] or command in ways["run_as"]:
            output = run(listed["run_as"].get(command, command))
            count += 1
            block = listed["prints"].get(command)
            if block and re.search(rf"^```{block}\n(.*?)^```", page.read_text(), re.S | re.M)[1] not in output:
                sys.exit(f"error: {page}: $ {command}\nprinted\n{output}\nand not the page's {block} block")
print(f"{count} commands run, {len(ways['tested_by'])} tested elsewhere, {len(ways['not_run'])} not run")
