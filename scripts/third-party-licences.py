#!/usr/bin/env python3
"""Prints the copyright notices and licence texts of the crates that the library contains.

Whoever hands out the compiled library hands out their code, and their licences ask for the
notices to come along. Reads what `cargo metadata --format-version 1` prints, for the features and
the platform that are built, and the licence files beside each crate's manifest. Ends with 1 when a
crate names no licence; one that names a licence and ships no text of it is listed with the name.

    cargo metadata --format-version 1 … | third-party-licences.py PACKAGE
"""

import json
import pathlib
import re
import sys

LICENCE_FILE = re.compile(r"(licen[cs]e|copying|copyright|notice|unlicense)", re.IGNORECASE)


def linked_packages(metadata, root_name):
    """The packages that end up in the library: no build scripts, no macros, no tests."""
    packages = {package["id"]: package for package in metadata["packages"]}
    nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
    root = next(
        id for id in metadata["workspace_members"] if packages[id]["name"] == root_name
    )
    found, pending = set(), [root]
    while pending:
        id = pending.pop()
        is_macro = any("proc-macro" in target["kind"] for target in packages[id]["targets"])
        if id in found or is_macro:
            continue
        found.add(id)
        for dependency in nodes[id]["deps"]:
            if any(kind["kind"] is None for kind in dependency["dep_kinds"]):
                pending.append(dependency["pkg"])
    found.remove(root)
    return sorted((packages[id] for id in found), key=lambda p: (p["name"], p["version"]))


def licence_texts(package):
    folder = pathlib.Path(package["manifest_path"]).parent
    files = {path for path in folder.iterdir() if path.is_file() and LICENCE_FILE.match(path.name)}
    if package["license_file"]:
        files.add((folder / package["license_file"]).resolve())
    texts = (path.read_text(encoding="utf-8", errors="replace") for path in sorted(files))
    return ["\n".join(line.rstrip() for line in text.strip().splitlines()) for text in texts]


def main():
    packages = linked_packages(json.load(sys.stdin), sys.argv[1])
    unlicensed = [p["name"] for p in packages if not (p["license"] or p["license_file"])]
    if unlicensed or not packages:
        sys.exit(f"no licence is named by: {', '.join(unlicensed) or 'no crate was found'}")

    # Most crates share their texts: each is printed once, and referred to by its number.
    numbers = {}
    print("The library contains code of these crates. The numbers are those of the texts below.\n")
    for package in packages:
        texts = licence_texts(package)
        shown = [str(numbers.setdefault(text, len(numbers) + 1)) for text in texts]
        authors = "; ".join(re.sub(r" *<[^>]*>", "", author) for author in package["authors"])
        print(f"{package['name']} {package['version']}")
        print(f"    licence: {package['license'] or 'see its text'}")
        print(f"    texts:   {', '.join(shown) or 'none in the crate'}")
        if authors:
            print(f"    authors: {authors}")
    for text, number in numbers.items():
        print(f"\n{'-' * 78}\n[{number}]\n\n{text}")


main()
