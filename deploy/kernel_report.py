#!/usr/bin/env python3
"""Registers and spills of every CUDA kernel as ptxas reports them, as a table in Markdown: the worst of a
kernel's instantiations. Needs nvcc and no card. Shared memory is not in it: kernels ask for it when they are
launched, which ptxas does not see. Usage: deploy/kernel_report.py [sm_90a]
"""
import collections
import concurrent.futures
import os
import pathlib
import re
import shutil
import subprocess
import sys

REPOSITORY = pathlib.Path(__file__).resolve().parent.parent
NVCC = shutil.which("nvcc") or os.environ.get("CUDA_HOME", "/usr/local/cuda") + "/bin/nvcc"
ENTRY = re.compile(r"Compiling entry function '(.*)' for|"
                   r"(\d+) bytes spill stores, (\d+) bytes spill loads|Used (\d+) registers")


def report_of(source, architecture):
    """What ptxas says of one file, names demangled."""
    command = [NVCC, "-std=c++20", "-O3", "-DNDEBUG", f"-arch={architecture}", "--expt-relaxed-constexpr",
               "-Xptxas=-v", "-I.", "-Icore/cuda/native", "-cubin", "-o", os.devnull, str(source)]
    result = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        sys.exit(f"{source}: {result.stderr}")
    return subprocess.run(["c++filt"], input=result.stderr, capture_output=True, text=True, check=True).stdout


def kernel_name(signature):
    """Without namespaces, template arguments and parameters."""
    return re.split(r"[<(]", signature.replace("(anonymous namespace)::", ""))[0].split("::")[-1]


def rows_of(report):
    """{kernel: [instantiations, registers, bytes of spill stores, of loads]}"""
    rows = collections.defaultdict(lambda: [0, 0, 0, 0])
    row = None
    for match in ENTRY.finditer(report):
        signature, stores, loads, registers = match.groups()
        if signature:
            row = rows[kernel_name(signature)]
            row[0] += 1
        elif registers:
            row[1] = max(row[1], int(registers))
        elif row:
            row[2:] = max(row[2], int(stores)), max(row[3], int(loads))
    return rows


def main():
    for tool in (NVCC, "c++filt"):
        if shutil.which(tool) is None:
            sys.exit(f"kernel_report.py: there is no {tool}; install CUDA's toolkit and binutils, or set CUDA_HOME")
    architecture = sys.argv[1] if len(sys.argv) > 1 else "sm_90a"
    sources = sorted((REPOSITORY / "core/cuda").glob("*.cu"))
    print("| file | kernel | instantiations | registers | spill stores, loads in bytes |\n|---|---|---|---|---|")
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for source, report in zip(sources, pool.map(lambda s: report_of(s, architecture), sources)):
            for kernel, (count, registers, stores, loads) in sorted(rows_of(report).items()):
                print(f"| {source.name} | {kernel} | {count} | {registers} | {stores}, {loads} |")


if __name__ == "__main__":
    main()
