# SPDX-License-Identifier: Apache-2.0
"""Hooks of mkdocs.yml.  Markdown stays as a forge shows it; this adds the pages that lie outside of docs/, and leads links to them.

A link to another file of the repository leads to repo_url, and is text without one; a file that is not there is a warning.
"""
import logging
import os
import posixpath
import re

from mkdocs.structure.files import File

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
# Path in the repository -> page of the site.
OUTSIDE = {"README.md": "index.md", "samples/README.md": "samples.md", "tests/README.md": "running_tests.md"}
PATHS = {page: path for path, page in OUTSIDE.items()}
LINK = re.compile(r"\[([^]\[]*)\]\((?!\w+:)([^)#\s]+)(#[^)\s]*)?\)|(?<=src=\")()([^\"]+)()|(?<=srcset=\")()([^\"]+)()")
log = logging.getLogger("mkdocs.hooks.site_pages")


def anchor(heading, separator):
    """As forges make it, so that a link works in both."""
    return re.sub(r"[^\w\s-]", "", heading.strip().lower()).replace(" ", separator)


def on_config(config):
    config.mdx_configs.setdefault("toc", {})["slugify"] = anchor
    return config


def on_files(files, config):
    for path, page in OUTSIDE.items():
        files.append(File.generated(config, page, abs_src_path=os.path.join(ROOT, path)))
    return files


def on_page_markdown(markdown, page, config, **_):
    here = page.file.src_uri
    source = PATHS.get(here, "docs/" + here)

    def lead(match):
        text, target, rest = (match[n] or match[n + 3] or match[n + 6] or "" for n in (1, 2, 3))
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
        if not os.path.exists(os.path.join(ROOT, path)):
            log.warning("%s links to %s, which is not there", source, path)
        if path in OUTSIDE or path.startswith("docs/"):
            target = posixpath.relpath(OUTSIDE.get(path, path.removeprefix("docs/")), posixpath.dirname(here) or ".")
        elif config.repo_url:
            target = f"{config.repo_url.rstrip('/')}/blob/main/{path}"
        else:
            return text
        return f"[{text}]({target}{rest})" if match[0].startswith("[") else target

    parts = re.split(r"(^ *```.*?^ *```$)", re.sub(r"<!--.*?-->", "", markdown, flags=re.S), flags=re.S | re.M)
    parts[::2] = [LINK.sub(lead, part) for part in parts[::2]]
    parts[1::2] = [re.sub(r"^( *```\w+) .*", r"\1", part) for part in parts[1::2]]  # `console libfsdp`: one word is known
    return "".join(parts)
