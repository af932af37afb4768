#!/usr/bin/env bash
# Every relative link in the documentation leads to a file that exists, and every test that
# docs/invariants.md names is in the sources.
#
#   links.sh SOURCE_DIR
set -euo pipefail
cd "$1"

# Not in code blocks, not to the web, without the place within the page.
links_of() {
  awk '/^```/ { code = !code; next } !code' "$1" | grep -oE '\]\([^) ]+\)' | sed 's/^](//; s/)$//; s/#.*//' |
    grep -vE '^$|^https?:|^mailto:' || true
}

broken() { # FILE: its links that lead nowhere
  local file=$1 link
  while read -r link; do
    [ -e "$(dirname "$file")/$link" ] || echo "$file: $link"
  done < <(links_of "$file")
}

# The check must be able to fail.
bad=$(mktemp -d)
trap 'rm -rf "$bad"' EXIT
echo 'see [nothing](nowhere.md) and [itself](bad.md)' >"$bad/bad.md"
[ "$(broken "$bad/bad.md")" = "$bad/bad.md: nowhere.md" ] ||
  { echo "links: a broken link was not found; this check finds nothing" >&2; exit 1; }

files=0 all=""
while read -r file; do
  files=$((files + 1))
  all+=$(broken "$file")$'\n'
done < <(find README.md docs kernels examples -name '*.md' 2>/dev/null)
[ "$files" -ge 3 ] || { echo "links: found only $files pages" >&2; exit 1; }
all=$(sed "/^$/d" <<<"$all")
[ -z "$all" ] || { printf 'links that lead nowhere:\n%s\n' "$all" >&2; exit 1; }
# A test is named there as `Suite.Name`.
in_sources() { grep -rqE "TEST(_F|_P)?\(${1%%.*}, ${1#*.}\)" tests --include=*.cc; }
in_sources Nobody.WroteThis && { echo "links: a test that is nowhere was found" >&2; exit 1; }
tests=0 missing=""
while read -r name; do
  tests=$((tests + 1))
  in_sources "$name" || missing+=" $name"
done < <(grep -oE '`[A-Z][A-Za-z]+\.[A-Z][A-Za-z]+`' docs/invariants.md | tr -d '`' | sort -u)
[ "$tests" -ge 15 ] || { echo "links: docs/invariants.md names only $tests tests" >&2; exit 1; }
[ -z "$missing" ] || { echo "docs/invariants.md names tests that do not exist:$missing" >&2; exit 1; }
echo "links: $files pages, $tests tests"
