#!/bin/sh
# Gathers the documentation for mdBook in a directory: docs/book.sh DIRECTORY
#
# The pages and their order are those of the table in docs/README.md; the two start pages come first.
set -eu
cd "$(dirname "$0")/.."
out=$1
rm -rf "$out"
mkdir -p "$out/src"
cp docs/book.toml "$out/"
# Pages may link to any of these.
git ls-files -z -- '*.md' LICENSE docs/images docs/performance examples deploy | xargs -0 cp --parents -t "$out/src"

# title FILE: its first heading
title() { sed -n 's/^# //p' "$1" | head -n 1; }
{
    echo '# Summary'
    echo
    echo '[Ferroute](README.md)'
    echo '[简体中文](README.zh-CN.md)'
    echo
    echo '- [Documentation](docs/README.md)'
    # Links in the second column, as paths from the top.
    sed -n 's/^| [a-z]* *| \(.*\) | .* |$/\1/p' docs/README.md | grep -o '([^)]*)' | tr -d '()' | while read -r link; do
        page=$(realpath --relative-to=. "docs/$link")
        if [ -d "$page" ]; then
            echo "- [$(basename "$page")]()"
            for file in "$page"/*.md; do echo "  - [$(title "$file")]($file)"; done
        elif [ "${page##*.}" = md ]; then
            echo "- [$(title "$page")]($page)"
        fi
    done
} >"$out/src/SUMMARY.md"
