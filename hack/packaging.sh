# shellcheck shell=bash
# Functions of the scripts that make releases. A script sources this file first; it changes the working directory to the repository.

caller=$PWD
cd "$(dirname "${BASH_SOURCE[0]}")/.."
script=${0##*/}

say() { printf '%s: %s\n' "$script" "$*" >&2; }

fail() {
	say "$*"
	exit 2
}

# usage prints the part of the script's comment that begins with "usage:".
usage() { sed -nE '/^# usage:/,/^#$/s/^# ?//p' "scripts/$script" >&2; }

# absolute PATH prints a path that is relative to the working directory of the caller.
absolute() { if [[ $1 == /* ]]; then printf '%s' "$1"; else printf '%s/%s' "$caller" "$1"; fi; }

# commit runs git in this repository, and not in one that contains a copy without history.
commit() { [[ -e .git ]] && git "$@" 2>/dev/null; }
