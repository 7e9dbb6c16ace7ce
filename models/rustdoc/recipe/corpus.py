"""Build the text corpus from the HTML documentation shipped with a Rust toolchain.

    python corpus.py [--html DIR] --out DIR

Writes `train.jsonl` and `heldout.jsonl`, one `{"path", "text"}` per document, in a
deterministic order. Pages become Markdown: headings, fenced code with its line structure,
lists and inline code survive; navigation, sidebars, scripts and trait implementation lists do
not. A part of the library's source, without its documentation comments, is added as code. Items
documented more than once (`core`, `alloc` and `std` share most of theirs; the integer types
differ only in names and numbers) are kept once.
"""

import argparse
import hashlib
import html
import json
import multiprocessing
import re
import subprocess
from pathlib import Path

# Books first, so that the copy of a repeated passage that stays is the best placed one.
SECTIONS = [
    "book", "rust-by-example", "reference", "nomicon", "std", "alloc", "core", "proc_macro", "test",
    "error_codes", "cargo", "rustc", "rustdoc", "edition-guide", "style-guide", "embedded-book",
    "clippy", "unstable-book", "src",
]
SKIP_PATH = re.compile(
    r"/(arch|core_arch|core_simd|simd|std_detect|std_float|stdarch|tests|benches|sys|os|windows_sys)/|"
    r"/(unicode|dec2flt|flt2dec)/|"
    r"^/src/(?!alloc/|core/|std/)|^/rust-by-example/(es|ja|ko|zh)/|"
    r"/(print|CHANGELOG|test-summary|all|toc|404|searcher|genindex|help|settings|SUMMARY)\.html$"
)
HELDOUT_ONE_IN = 64
MAX_REPEATS = 3
MAX_SOURCE, MAX_PAGE = 10_000, 100_000  # characters kept of one document

# Parts of a page that never carry documentation text.
DROP = re.compile(
    r"<script.*?</script>|<style.*?</style>|<svg.*?</svg>|<button.*?</button>|<nav.*?</nav>"
    r"|<rustdoc-toolbar.*?</rustdoc-toolbar>|<summary class=\"hideme\">.*?</summary>"
    r"|<a class=\"src[^>]*>.*?</a>|<a class=\"(?:test-arrow|doc-anchor)[^>]*>.*?</a>"
    r"|<a href=\"[^\"]*\" class=\"(?:anchor|doc-anchor|tooltip|test-arrow)[^>]*>.*?</a>"
    r"|<span class=\"since.*?</span>|<span class=\"boring\">.*?</span>"
    r"|<(span|div) class=\"rustdoc-breadcrumbs\">.*?</\1>"
    r"|<div class=\"stab.*?</div>|<span class=\"stab.*?</span>|<div class=\"sidebar.*?</div>"
    r"|<h1 class=\"menu-title\".*?</h1>|<!--.*?-->|<wbr/?>",
    re.S,
)
LINE_NUMBER = re.compile(r"<a href=#\d+ id=\d+[^>]*>\d+</a>")  # of a source listing
# The rest of a library page from here on is lists of implementations.
CUT = re.compile(
    r"<h2 id=\"(?:trait-implementations|synthetic-implementations|blanket-implementations|"
    r"implementors|foreign-impls|deref-methods[^\"]*|object-safety|dyn-compatibility)\""
)
PIECE = re.compile(r"<(/?)([a-zA-Z][a-zA-Z0-9-]*)([^>]*)>|([^<]+|<)")
LANGUAGE = re.compile(r"language-([a-z]+)")
BREAKS = {"p", "div", "section", "details", "summary", "ul", "ol", "dl", "table", "tr", "blockquote", "dd", "main"}


def page_body(page):
    """The part of an HTML page that holds its documentation."""
    start = page.find('<section id="main-content"')
    if start < 0:
        start = page.find("<main>")
    if start < 0:
        start = max(page.find("<body"), 0)
    end = page.find("</main>", start)
    body = LINE_NUMBER.sub("", page[start : end if end > 0 else len(page)])
    cut = CUT.search(body)
    return DROP.sub("", body[: cut.start()] if cut else body)


def to_blocks(body):
    """Render HTML as a list of Markdown blocks `(kind, text)`; kind is head, sig, code or text."""
    blocks, out = [], []
    kind, pre, pre_tag, items = "text", False, "rust", []

    def flush(next_kind="text"):
        nonlocal kind
        text = "".join(out)
        out.clear()
        if not pre:
            text = re.sub(r"[ \t\n]+", " ", text).strip()
        if text.strip():
            blocks.append((kind, text))
        kind = next_kind

    for closing, tag, attributes, text in PIECE.findall(body):
        if text:
            out.append(html.unescape(text).replace("\u00a0", " "))
        elif tag == "pre":
            if not closing:
                flush("code")
                pre, pre_tag = True, "rust" if "rust" in attributes else "text"
            elif pre:
                code = "".join(out).strip("\n").rstrip()
                out.clear()
                if code.strip():
                    blocks.append(("code", f"```{pre_tag}\n{code}\n```"))
                pre, kind = False, "text"
        elif pre:
            if tag == "br":
                out.append("\n")
            elif tag == "code" and not closing:
                named = LANGUAGE.search(attributes)
                if named:
                    pre_tag = named.group(1)
        elif tag in ("code", "tt"):
            if kind != "sig":
                out.append("`")
        elif tag in ("h1", "h2", "h3", "h4", "h5", "h6"):
            if closing:
                flush()
            elif "code-header" in attributes:
                flush("sig")
                out.append("### ")
            else:
                flush("head")
                out.append("#" * int(tag[1]) + " ")
        elif tag in ("li", "dt"):
            if tag == "dt" and closing:
                out.append(": ")
            else:
                flush()
            if not closing:
                out.append("- ")
        elif tag == "td" or tag == "th":
            if closing:
                out.append(" | ")
        elif tag == "br":
            out.append(" ")
        elif tag in BREAKS and not (tag == "dd" and not closing):
            # A list item keeps its first paragraph on the item's own line.
            if not ("".join(out).strip() == "-" and not closing):
                flush()
    flush()
    return blocks


def fingerprint(text):
    """A key that ignores numbers, numeric type names and spacing."""
    text = re.sub(r"\b(?:NonZero|Atomic)?[iufIUF](?:8|16|32|64|128|size)\b|0x[0-9a-fA-F_]+|\d[\d_]*", "#", text)
    return hashlib.blake2b(re.sub(r"\W+", " ", text).encode(), digest_size=12).digest()


def source_code(page):
    """A source listing without its documentation comments, which the library pages hold already."""
    code = "".join(text for kind, text in to_blocks(page_body(page)) if kind == "code")
    code = re.sub(r"^[ \t]*(?://[/!]|#!?\[(?:un)?stable\(|#!?\[rustc_|#!?\[doc).*\n", "", code, flags=re.M)
    return re.sub(r"\n{3,}", "\n\n", code)


def read_page(job):
    root, path = job
    page = (Path(root) / path).read_text("utf-8", "replace")
    if 'http-equiv="refresh"' in page[:2000].lower():
        return path, []
    if path.startswith("src/"):
        return path, [("code", source_code(page))]
    blocks = []
    for kind, text in to_blocks(page_body(page)):
        if text.startswith("- ") and text.count(" ") == 1:
            text = text.removesuffix(":")
        if re.fullmatch(r"\W*|[\d.]+( \(const: .*)?", text):
            continue
        if kind == "head" and re.match(r"#+ (?:Implementations|Methods?|Fields|Variants)?$", text):
            continue
        blocks.append((kind, text))
    return path, blocks


def units(blocks):
    """Group blocks into units that are kept or dropped whole: a signature or a section and its text."""
    unit = []
    for kind, text in blocks:
        top = kind == "sig" or (kind == "head" and not re.match(r"#+ (?:Examples?|Panics|Safety|Errors|Notes?)", text))
        if top and unit:
            yield unit
            unit = []
        unit.append((kind, text))
    if unit:
        yield unit


def join(blocks):
    """Blocks as one text: blank lines between blocks, none between list items."""
    text, last = "", ""
    for _, block in blocks:
        if text:
            text += "\n" if block.startswith("- ") and last.startswith("- ") else "\n\n"
        text += block
        last = block
    return text


def document(blocks, seen, repeats):
    """One page's text without the units and paragraphs that `seen` holds already."""
    kept = []
    for unit in units(blocks):
        body = [b for b in unit if b[0] not in ("sig", "head")]
        if not body:
            if unit[0][0] == "head":
                kept += unit[:1]
            continue
        key = fingerprint(" ".join(text for _, text in body))
        if key in seen:
            continue
        seen.add(key)
        fresh = []
        for kind, text in unit:
            if kind in ("text", "code") and len(text) > 60:
                key = fingerprint(text)
                repeats[key] = repeats.get(key, 0) + 1
                if repeats[key] > MAX_REPEATS and len(body) > 1:
                    continue
            fresh.append((kind, text))
        while fresh and fresh[-1][0] == "head":
            fresh.pop()
        if any(kind in ("text", "code") for kind, _ in fresh):
            kept += fresh
    while kept and kept[-1][0] == "head":
        kept.pop()
    return join(kept)


def truncate(text, limit):
    """The whole lines of `text` that fit in `limit` characters."""
    if len(text) <= limit:
        return text
    text = text[: text.rindex("\n", 0, limit)]
    return text + "\n```" if ("\n" + text).count("\n```") % 2 else text


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--html", help="documentation root; by default that of the active toolchain")
    parser.add_argument("--out", required=True)
    parser.add_argument("--jobs", type=int, default=multiprocessing.cpu_count())
    args = parser.parse_args()
    if not args.html:
        sysroot = subprocess.run(["rustc", "--print", "sysroot"], check=True, capture_output=True, text=True).stdout
        args.html = Path(sysroot.strip()) / "share/doc/rust/html"
    root = Path(args.html)
    out = Path(args.out)
    out.mkdir(parents=True, exist_ok=True)

    paths = []
    for section in SECTIONS:
        found = sorted(p.relative_to(root).as_posix() for p in (root / section).rglob("*.html"))
        paths += [p for p in found if not SKIP_PATH.search("/" + p)]
    paths += [p for p in ("releases.html",) if (root / p).exists()]

    seen, repeats, sizes, counts = set(), {}, {}, [0, 0]
    with multiprocessing.Pool(args.jobs) as pool, open(out / "train.jsonl", "w") as train, open(
        out / "heldout.jsonl", "w"
    ) as heldout:
        for path, blocks in pool.imap(read_page, [(str(root), p) for p in paths], chunksize=16):
            text = document(blocks, seen, repeats)
            text = truncate(text, MAX_SOURCE if path.startswith("src/") else MAX_PAGE)
            if len(text) < 200:
                continue
            held = int(hashlib.sha256(path.encode()).hexdigest(), 16) % HELDOUT_ONE_IN == 0
            line = json.dumps({"path": path, "text": text}, ensure_ascii=False) + "\n"
            (heldout if held else train).write(line)
            counts[held] += 1
            section = path.split("/")[0]
            sizes[section] = sizes.get(section, 0) + len(text.encode())
    for section, size in sizes.items():
        print(f"{section:20} {size / 1e6:7.2f} MB")
    print(f"{'total':20} {sum(sizes.values()) / 1e6:7.2f} MB in {counts[0]} documents, {counts[1]} more held out")


if __name__ == "__main__":
    main()
