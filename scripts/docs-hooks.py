"""Hooks of mkdocs (mkdocs.yml): adds the pages outside of docs/, and the files of the repository that pages link to."""
import pathlib
import posixpath
import re

from mkdocs.structure.files import File

ROOT = pathlib.Path(__file__).parent.parent
PAGES = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")
LINK = re.compile(r"(?<=\]\()(?![a-z]+:|#)([^)#\s]+)")


def from_root(page, target):
    """The path of a page's link below the repository; None where there is no such file, as in code."""
    path = posixpath.normpath(posixpath.join("" if page in PAGES else "docs", target))
    return path if (ROOT / path).is_file() else None


def on_files(files, config):
    pages = {page: (ROOT / page).read_text() for page in PAGES}
    pages |= {file.src_path: pathlib.Path(file.abs_src_path).read_text() for file in files.documentation_pages()}
    linked = {from_root(page, target) for page, text in pages.items() for target in LINK.findall(text)}
    for path in [*PAGES, *sorted(path for path in linked if path and not path.endswith(".md"))]:
        files.append(File(path, str(ROOT), config["site_dir"], config["use_directory_urls"]))
    return files


def on_page_markdown(markdown, page, config, files):
    """Links of the site are relative to docs/, where mkdocs has all pages."""
    return LINK.sub(lambda link: (from_root(page.file.src_path, link[1]) or link[1]).removeprefix("docs/"), markdown)
