#!/usr/bin/env bash
# Prints the notes of a release: notes.sh VERSION [BUILD_IMAGE RUST_IMAGE DEBIAN_IMAGE]
#
# These are the section of the version in the changelog, and the images in which the files and images of the release were built, by
# digest: of archives and packages, of the programs in images, and below the images.
set -euo pipefail
cd "$(dirname "$0")/../.."
notes=$(awk -v heading="## $1" '/^## /{ is_own = $0 == heading; next } is_own' CHANGELOG.md)
[ -n "$notes" ] || { echo "CHANGELOG.md has no section \"## $1\"" >&2; exit 1; }
printf '%s\n' "$notes"
[ $# = 1 ] || cat <<END

### Images in which this release was built

| built | in |
| --- | --- |
| archives and Debian packages | \`${2:?}\` |
| programs of the images | \`${3:?}\` |
| images | \`${4:?}\` |
END
