#!/bin/sh
# Runs a command in a mount namespace in which the iptables programs are not installed: without-iptables.sh COMMAND...
# Requires root.
exec unshare --mount sh -euc '
for directory in /usr/sbin /sbin /usr/local/sbin; do
    # A link to another one, or without the programs.
    [ ! -L "$directory" ] && ls "$directory" 2>/dev/null | grep -q -e "tables" || continue
    changes=$(mktemp -d)
    mount -t tmpfs none "$changes"
    mkdir "$changes/files" "$changes/work"
    mount -t overlay -o "lowerdir=$directory,upperdir=$changes/files,workdir=$changes/work" overlay "$directory"
    rm -f "$directory"/iptables* "$directory"/ip6tables* "$directory"/xtables*
    umount -l "$changes"
    rmdir "$changes"
done
exec "$@"' sh "$@"
