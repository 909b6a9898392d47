#!/usr/bin/env python3
"""Prints an SBOM (CycloneDX) with only the components that `cargo tree` has listed on standard input: sbom.py SBOM.

cargo-cyclonedx also lists those of features that only tests of the workspace enable.
"""

import json
import sys


def main():
    listed = {tuple(line.split()[:2]) for line in sys.stdin if line.strip()}
    with open(sys.argv[1], encoding="utf-8") as file:
        bom = json.load(file)
    kept = [component for component in bom["components"] if (component["name"], "v" + component["version"]) in listed]
    known = {component["bom-ref"] for component in kept} | {bom["metadata"]["component"]["bom-ref"]}
    bom["components"] = kept
    bom["dependencies"] = [
        entry | {"dependsOn": [ref for ref in entry["dependsOn"] if ref in known]} if "dependsOn" in entry else entry
        for entry in bom["dependencies"]
        if entry["ref"] in known
    ]
    # All of them but the program itself.
    if len(kept) != len(listed) - 1:
        sys.exit(f"sbom.py: {len(kept)} components, and {len(listed) - 1} in the program")
    json.dump(bom, sys.stdout, indent=2, ensure_ascii=False)
    print()


main()
