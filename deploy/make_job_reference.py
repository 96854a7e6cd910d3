#!/usr/bin/env python3
"""Writes docs/job_reference.md from the fields, defaults and comments of proto/job.proto.

    deploy/make_job_reference.py            writes it
    deploy/make_job_reference.py --check    exits 1 when it is out of date
"""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
PROTO = ROOT / "proto/job.proto"
REFERENCE = ROOT / "docs/job_reference.md"

HEAD = """# The job file

Text-format protobuf, message `JobSpec`. This page is made from `proto/job.proto` by
`deploy/make_job_reference.py`; change the comments there. Fields marked *required* or *derived* have no
fixed default; `twinstream validate JOB` names what is missing, and every run writes the job with all
defaults filled in to `job.textproto` in its metrics directory.
"""

MESSAGE = re.compile(r"message (\w+) \{")
ENUM = re.compile(r"enum (\w+) \{")
VALUE = re.compile(r"(\w+) = \d+;(?:\s*//\s*(.*))?$")
FIELD = re.compile(
    r"(optional|repeated) ([\w.]+) (\w+) = \d+(?: \[default = ([^\]]+)\])?;(?:\s*//\s*(.*))?$")


def parse(lines):
    """{message: [(label, type, name, default, comment)]}, {enum: [(value, comment)]}."""
    messages, enums = {}, {}
    message = enum = None
    for number, line in enumerate(lines, 1):
        line = line.strip()
        if found := MESSAGE.match(line):
            message = found[1]
            messages[message] = []
        elif found := ENUM.match(line):
            enum = f"{message}.{found[1]}"
            enums[enum] = []
        elif line == "}":
            enum, message = None, message if enum else None
        elif enum and (found := VALUE.match(line)):
            enums[enum].append(found.groups(""))
        elif message and (found := FIELD.match(line)):
            messages[message].append(found.groups(""))
        elif message and line and not line.startswith("//"):
            sys.exit(f"{PROTO}:{number}: not understood: {line}")
    return messages, enums


def enum_of(enums, message, type_name):
    return enums.get(f"{message}.{type_name}") or enums.get(type_name)


def section(messages, enums, message, path):
    """The table of one message, then its values and messages."""
    lines = [f"\n## {path or 'Top level'}\n", "| field | type | default | meaning |", "|---|---|---|---|"]
    values, nested = [], []
    for label, type_name, name, default, comment in messages[message]:
        full = f"{path}.{name}" if path else name
        list_mark = "[]" if label == "repeated" else ""
        if type_name in messages:
            nested.append((type_name, full + list_mark))
            lines.append(f"| `{name}` | [{full}](#{full.replace('.', '')})"
                         f"{', repeated' if list_mark else ''} | | {comment} |")
            continue
        if choices := enum_of(enums, message, type_name):
            values.append((name, choices))
            type_name = "one of the values below"
        lines.append(f"| `{name}` | {type_name} | {f'`{default}`' if default else ''} | {comment} |")
    for name, choices in values:
        lines.append(f"\n`{name}`:\n")
        lines += [f"- `{value}`{': ' + comment if comment else ''}" for value, comment in choices]
    for type_name, full in nested:
        lines += section(messages, enums, type_name, full)
    return lines


def main():
    messages, enums = parse(PROTO.read_text().splitlines())
    text = HEAD + "\n".join(section(messages, enums, "JobSpec", "")) + "\n"
    if sys.argv[1:] == ["--check"]:
        if not REFERENCE.exists() or REFERENCE.read_text() != text:
            sys.exit(f"{REFERENCE} is out of date; run deploy/make_job_reference.py")
    elif sys.argv[1:]:
        sys.exit(__doc__)
    else:
        REFERENCE.write_text(text)


if __name__ == "__main__":
    main()
