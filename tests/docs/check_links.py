#!/usr/bin/python3
"""check_links.py ROOT: every relative link in the pages of the repository leads to a file, and to a heading where it
names one, by the names that GitHub gives to headings; every page of docs/ is in the navigation of mkdocs.yml. Ends
with 1 and all links that do not."""
import pathlib
import re
import sys

root = pathlib.Path(sys.argv[1])
pages = [root / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")] + sorted(root.glob("docs/*.md"))
wrong = []


def without_code(text):
    return re.sub(r"`[^`\n]*`", "`code`", re.sub(r"^ *```.*?^ *```", "", text, flags=re.S | re.M))


def anchors(page):
    names = set()
    for heading in re.findall(r"^#+ (.*)$", re.sub(r"^ *```.*?^ *```", "", page.read_text(), flags=re.S | re.M), re.M):
        heading = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
        names.add(re.sub(r"[^\w\- ]", "", heading).replace(" ", "-"))
    return names


count = 0
for page in pages:
    for target, anchor in re.findall(r"\]\((?![a-z]+:)([^)#\s]*)(?:#([^)\s]*))?\)", without_code(page.read_text())):
        count += 1
        file = (page.parent / target).resolve() if target else page
        if not file.exists():
            wrong.append(f"{page}: {target} does not exist")
        elif anchor and anchor not in anchors(file):
            wrong.append(f"{page}: {target}#{anchor}: no such heading")
navigation = set(re.findall(r"^ *- (?:.*: )?(\S+\.md)$", (root / "mkdocs.yml").read_text(), re.M))
for page in pages:
    if page.name not in navigation:
        wrong.append(f"mkdocs.yml lacks {page.name}")
if wrong or count < 50:
    sys.exit("\n".join([f"error: {count} links", *wrong]))
print(f"{count} links")
