"""File operations in a cage, as POSIX shell: any image with a shell and coreutils or busybox has
what they need. A script exits with one of `CODES`, or with another status and a message.
"""

from __future__ import annotations

CODES = {
    101: "not_found",
    102: "permission_denied",
    103: "is_a_directory",
    104: "not_a_directory",
    105: "already_exists",
    106: "not_a_file",
    107: "not_empty",
}

# The system's own programs come first; nothing that the agent put into its PATH is meant.
_COMMON = """
PATH=/usr/bin:/bin:/usr/sbin:/sbin:$PATH
LC_ALL=C
export PATH LC_ALL
p=$1
# Why nothing can be done with $p: a directory above it cannot be searched, or it does not exist.
missing() {
    if [ -e "$p" ] || [ -L "$p" ]; then exit 102; fi
    a=$p
    while :; do
        case $a in
            /|.) break ;;
            */*) a=${a%/*}; [ -n "$a" ] || a=/ ;;
            *) a=. ;;
        esac
        [ -e "$a" ] && break
    done
    if [ -d "$a" ] && [ ! -x "$a" ]; then exit 102; fi
    exit 101
}
"""

#: Standard output is the content: at most $2 bytes from byte $3 on.
READ = (
    _COMMON
    + """
[ -d "$p" ] && exit 103
[ -e "$p" ] || missing
[ -f "$p" ] || exit 106
( : < "$p" ) 2>/dev/null || missing
if [ "$3" -gt 0 ]; then tail -c +"$(($3 + 1))" < "$p" | head -c "$2"; else exec head -c "$2" < "$p"; fi
"""
)

#: Standard input is the content. $2 is `append` to add to the file.
WRITE = (
    _COMMON
    + """
[ -d "$p" ] && exit 103
case $p in */*) d=${p%/*}; [ -n "$d" ] || d=/ ;; *) d=. ;; esac
if [ ! -d "$d" ]; then
    mkdir -p "$d" 2>/dev/null || {
        a=$d
        while [ ! -e "$a" ] && [ ! -L "$a" ]; do
            case $a in */*) a=${a%/*}; [ -n "$a" ] || a=/ ;; *) a=. ;; esac
        done
        [ -d "$a" ] || exit 104
        exit 102
    }
fi
( : >> "$p" ) 2>/dev/null || exit 102
[ -f "$p" ] || exit 106
if [ "$2" = append ]; then exec cat >> "$p"; else exec cat > "$p"; fi
"""
)

# Of each entry: raw mode in hex, size, modification time, path; each ended by a NUL. GNU's stat
# does it at once; with another one, each entry takes a process.
_STAT = """
if stat --printf '' / 2>/dev/null; then
    stat_all() { find "$@" -exec stat --printf '%f\\0%s\\0%Y\\0%n\\0' {} +; }
else
    stat_all() {
        find "$@" -exec sh -c 'for f do stat -c "%f %s %Y" "$f" | tr " \\n" "\\000\\000"; printf "%s\\000" "$f"; done' sh {} +
    }
fi
"""

#: Lists what is below $p, $2 levels deep.
LIST = (
    _COMMON
    + _STAT
    + """
if [ ! -d "$p" ]; then [ -e "$p" ] || missing; exit 104; fi
[ -r "$p" ] && [ -x "$p" ] || exit 102
stat_all "$p/" -mindepth 1 -maxdepth "$2" 2>/dev/null
exit 0
"""
)

#: The entry itself; a symbolic link is not followed.
STAT = (
    _COMMON
    + _STAT
    + """
[ -e "$p" ] || [ -L "$p" ] || missing
stat_all "$p" -maxdepth 0
"""
)

EXISTS = (
    _COMMON
    + """
[ -e "$p" ] || [ -L "$p" ] || missing
"""
)

#: $2 is `recursive` to remove a directory with what is in it.
REMOVE = (
    _COMMON
    + """
[ -e "$p" ] || [ -L "$p" ] || missing
if [ -d "$p" ] && [ ! -L "$p" ]; then
    if [ "$2" = recursive ]; then rm -rf "$p" 2>/dev/null; [ -e "$p" ] || exit 0; exit 102; fi
    rmdir "$p" 2>/dev/null && exit 0
    [ -n "$(ls -A "$p" 2>/dev/null)" ] && exit 107
    exit 102
fi
rm -f "$p" 2>/dev/null || exit 102
"""
)

#: Moves $p to $2. An existing file is replaced, an existing directory is not.
RENAME = (
    _COMMON
    + """
[ -e "$p" ] || [ -L "$p" ] || missing
[ -d "$2" ] && exit 105
case $2 in */*) d=${2%/*}; [ -n "$d" ] || d=/ ;; *) d=. ;; esac
if [ ! -d "$d" ]; then p=$d; [ -e "$d" ] || missing; exit 104; fi
mv -f "$p" "$2" 2>/dev/null || exit 102
"""
)

#: Makes the directory and those above it; an existing one is fine.
MAKE_DIR = (
    _COMMON
    + """
[ -d "$p" ] && exit 0
[ -e "$p" ] && exit 105
mkdir -p "$p" 2>/dev/null && exit 0
a=$p
while [ ! -e "$a" ]; do case $a in */*) a=${a%/*}; [ -n "$a" ] || a=/ ;; *) a=. ;; esac; done
[ -d "$a" ] || exit 104
exit 102
"""
)
