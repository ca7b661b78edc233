#!/usr/bin/python3
"""check_site.py SITE: the built site has a page for each of its source, all links inside it lead to files and to
headings, its search knows all pages, and it loads nothing from elsewhere. Ends with 1 and what is wrong."""
import html.parser
import json
import pathlib
import sys
import urllib.parse

site = pathlib.Path(sys.argv[1])
wrong = []


class Page(html.parser.HTMLParser):
    def __init__(self, path):
        super().__init__()
        self.links, self.loaded, self.names = [], [], {""}
        self.feed(path.read_text())

    def handle_starttag(self, tag, attributes):
        values = dict(attributes)
        self.names.add(values.get("id"))
        if tag == "a" and values.get("href"):
            self.links.append(values["href"])
        elif tag in ("script", "img", "link") and (values.get("src") or values.get("href")):
            if values.get("rel") != "canonical":
                self.loaded.append(values.get("src") or values["href"])


pages = {path: Page(path) for path in site.glob("**/*.html") if path.name != "404.html"}
count = 0
for path, page in pages.items():
    for link in page.links + page.loaded:
        parts = urllib.parse.urlsplit(link)
        if parts.scheme or parts.netloc:
            if link in page.loaded:
                wrong.append(f"{path} loads {link}")
            continue
        count += 1
        target = (path.parent / urllib.parse.unquote(parts.path)).resolve() if parts.path else path
        target = target / "index.html" if target.is_dir() else target
        if not target.exists():
            wrong.append(f"{path}: {link} does not exist")
        elif target in pages and urllib.parse.unquote(parts.fragment) not in pages[target].names:
            wrong.append(f"{path}: {link}: no such heading")
found = {entry["location"].split("#")[0] for entry in json.loads((site / "search/search_index.json").read_text())["docs"]}
for path in pages:
    if str(path.relative_to(site)).replace("index.html", "") not in found | {name.replace("index.html", "") for name in found}:
        wrong.append(f"the search lacks {path}")
if wrong or len(pages) < 20 or count < 500:
    sys.exit("\n".join([f"error: {len(pages)} pages, {count} links", *wrong]))
print(f"{len(pages)} pages, {count} links")
