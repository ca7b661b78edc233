#!/usr/bin/python3
"""apply_diffs.py DOCUMENT SOURCE TARGET: applies the document's ```diff blocks to copies of the files that they
name, read from SOURCE and written below TARGET. `--- a/FILE` begins a file, `@@` a change. The lines of a change
without its added ones must occur exactly once in the file. Ends with 1 and the change where they do not."""
import pathlib
import re
import sys

document, source, target = (pathlib.Path(argument) for argument in sys.argv[1:])


def changed(text, change, name):
    lines = change.splitlines(keepends=True)
    before = "".join(line[1:] for line in lines if not line.startswith("+"))
    after = "".join(line[1:] for line in lines if not line.startswith("-"))
    if text.count(before) != 1:
        sys.exit(f"error: {document}: these lines occur {text.count(before)} times in {name}, expected once:\n{before}")
    return text.replace(before, after)


found = 0
for block in re.findall(r"^```diff\n(.*?)^```", document.read_text(), re.S | re.M):
    for name, changes in re.findall(r"^--- a/(\S+)\n((?:(?!--- a/).*\n)*)", block, re.M):
        text = (source / name).read_text()
        for change in re.split(r"^@@\n", changes, flags=re.M)[1:]:
            text = changed(text, change, name)
        file = target / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        found += 1
if found == 0:
    sys.exit(f"error: {document} has no changes of files")
