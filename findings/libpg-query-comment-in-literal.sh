#!/bin/bash
# pglast 7.21 (libpg_query of PostgreSQL 17): a comment between two parts of a string literal is a syntax error.
#
# PostgreSQL joins two literals that stand on different lines, and a comment may stand between them ("4.1.2.1. String
# Constants" does not say so, the scanner's rule `whitespace_with_newline` does: it takes comments). PostgreSQL 15.20
# answers 'ab' to each of the three statements below. libpg_query says that it is "the actual PostgreSQL server
# source". But it returns comments as tokens of their own, and so loses this rule: what pgspot and pglast read is not
# quite the language.
# Seen: statement 1 parses; 2 and 3 raise ParseError: syntax error at or near "'b'".
#
# Needs python3 with venv, and PyPI. Fails if this changes.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install --quiet --disable-pip-version-check pglast==7.21
"$dir/venv/bin/python" - <<'PYTHON'
import pglast

def parse(sql):
    try:
        return pglast.parse_sql(sql)[0].stmt.targetList[0].val.val.sval
    except pglast.parser.ParseError as error:
        return f"ParseError: {error.args[0]}"

seen = [parse(sql) for sql in ("SELECT 'a'\n'b'", "SELECT 'a' -- c\n'b'", "SELECT 'a'\n-- c\n'b'")]
print("pglast", pglast.__version__, *seen, sep="\n")
wrong = "ParseError: syntax error at or near \"'b'\""
assert seen == ["ab", wrong, wrong], "this has changed"
PYTHON
