#!/usr/bin/env python3
"""Compares training speed and memory with PyTorch on this machine.

Runs build/tests/train_benchmark and torch_twin.py, the same model in PyTorch, block by block in turn, and
prints a table in Markdown. Needs a Python that imports torch; installs nothing. With --check it compares
the twin with tests/golden instead.
"""
import argparse
import datetime
import json
import os
import pathlib
import platform
import statistics
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
TWIN = HERE / "torch_twin.py"
PROGRAM = HERE.parent.parent / "build/tests/train_benchmark"
GIB = 2**30
MOST_CHARACTERS = 2**20  # of a line that a program answers, or of a golden file's header

# An allocator that keeps its pages: returning them after every tensor costs PyTorch up to half its speed.
TORCH_TUNABLES = ("glibc.malloc.hugetlb=1:glibc.malloc.mmap_max=0:"
                  "glibc.malloc.trim_threshold=68719476736:glibc.malloc.top_pad=268435456")


def refuse(message):
    """Ends the program as a command line that is wrong does."""
    print(message, file=sys.stderr)
    sys.exit(2)


class ProgramError(Exception):
    """A program ended, or said that it cannot go on."""


class Program:
    """One of the two programs: answers a line of JSON when ready, then one for every number of steps."""

    def __init__(self, name, command, environment):
        self.name = name
        try:
            self.process = subprocess.Popen(command, env=environment, text=True, errors="replace",
                                            stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        except OSError as error:
            raise ProgramError(f"{command[0]} cannot be run: {error.strerror}") from None
        try:
            self.ready = self.answer("product_gflops")
        except BaseException:
            self.close()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        try:
            self.process.stdin.close()
        except BrokenPipeError:
            pass  # it has ended
        self.process.stdout.close()
        self.process.wait()

    def answer(self, *fields):
        line = self.process.stdout.readline(MOST_CHARACTERS)
        if not line:
            raise ProgramError(f"{self.name} ended with exit code {self.process.wait()}")
        try:
            answer = json.loads(line)
        except ValueError:
            answer = None
        if isinstance(answer, dict) and "error" in answer:
            raise ProgramError(answer["error"])
        if not isinstance(answer, dict) or any(field not in answer for field in fields):
            raise ProgramError(f"{self.name} answered {line.strip()[:60]!r}, not a line of JSON with "
                               f"{', '.join(fields)}")
        return answer

    def run(self, steps):
        try:
            self.process.stdin.write(f"{steps}\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            raise ProgramError(f"{self.name} ended with exit code {self.process.wait()}") from None
        return self.answer("seconds", "product_gflops", "peak_rss_bytes")

    def cpu_seconds(self):
        fields = pathlib.Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")  # utime, stime


def environment(threads, **more):
    """One OpenMP pool, whose threads spin shortly and then sleep: an idle program takes no time."""
    inherited = {name: value for name, value in os.environ.items()
                 if not name.startswith(("OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_"))}
    return inherited | {"OMP_NUM_THREADS": str(threads), "KMP_BLOCKTIME": "1"} | more


def cpu_field(name):
    """What /proc/cpuinfo says of the first core."""
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        field, _, value = line.partition(":")
        if field.strip() == name:
            return value.strip()
    return "unknown"


def torch_environment(threads):
    tuned = {"GLIBC_TUNABLES": TORCH_TUNABLES, "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    if {"avx512f", "avx512bw", "avx512dq", "avx512vl"} <= set(cpu_field("flags").split()):
        tuned["ATEN_CPU_CAPABILITY"] = "avx512"  # some releases choose avx2 here
    return environment(threads, **tuned)


def torch_version():
    """Of the Python that runs this; ends the program where there is no torch."""
    program = "import torch; torch.nn.functional.rms_norm; print(torch.__version__)"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    if result.returncode != 0:
        reason = (result.stderr.strip().splitlines() or ["no reason given"])[-1]
        sys.exit(f"compare_torch.py needs PyTorch 2.4 or newer: {sys.executable} cannot import it "
                 f"({reason}). Install it there (python3 -m venv FOLDER; FOLDER/bin/pip install torch numpy) and run "
                 "this script with that Python.")
    return result.stdout.strip()


def block(active, idle, steps):
    """Steps of one program; also the share of a core that the other took meanwhile."""
    idle_before, begin = idle.cpu_seconds(), time.monotonic()
    answer = active.run(steps)
    wall = time.monotonic() - begin
    return answer | {"idle_cores": (idle.cpu_seconds() - idle_before) / wall}


def alternate(ours, peer, options):
    """Rounds of a block each, after one to warm up; who begins alternates, too."""
    ours.run(options.steps)
    peer.run(options.steps)
    rounds = []
    for number in range(options.rounds):
        answers = {}
        for active, idle in ((ours, peer), (peer, ours))[::-1 if number % 2 else 1]:
            answers[active.name] = block(active, idle, options.steps)
        rounds.append(answers)
    return rounds


def median_and_spread(values):
    values = list(values)
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def summary(rounds, dims, peer_name):
    """What a table's row says of the rounds with one peer."""
    tokens = dims["tokens"]

    def speed(answer):
        return tokens * len(answer["seconds"]) / sum(answer["seconds"])

    def share(answers, name):
        # The machine reaches what the faster of both products does.
        ceiling = max(answer["product_gflops"] for answer in answers.values())
        return speed(answers[name]) * dims["flops_per_token"] * 1e-9 / ceiling

    result = {"ratio": median_and_spread(speed(r["ours"]) / speed(r[peer_name]) for r in rounds),
              "idle_cores": max(answer["idle_cores"] for r in rounds for answer in r.values())}
    for label, name in (("ours", "ours"), ("torch", peer_name)):
        result[label] = {
            "tokens_per_second": median_and_spread(speed(r[name]) for r in rounds),
            "of_ceiling": median_and_spread(share(r, name) for r in rounds),
            "product_gflops": median_and_spread(r[name]["product_gflops"] for r in rounds),
            "peak_rss_bytes": max(r[name]["peak_rss_bytes"] for r in rounds)}
    return result


def refuse_hopeless(peer, dims, options):
    """CPUs without bf16 instructions multiply in BF16 a hundred times slower in PyTorch."""
    gflops = peer.ready["product_gflops"]
    seconds = dims["tokens"] * dims["flops_per_token"] * 1e-9 / gflops
    if seconds > options.slowest:
        raise ProgramError(f"not run: its {dims['precision']} products reach {gflops:.1f} GFLOP/s, so that "
                           f"a step would take {seconds:.0f} s (--slowest={options.slowest:.0f})")


def compare(options, shape, precision, scheme):
    """One row: our program against every mode of PyTorch, one after the other for the memory's sake."""
    variant = f"{options.job} model {{ residual: {scheme} }} train {{ precision: {precision} }}"
    command = [options.program, "--interactive", f"--shape={shape}", f"--device={options.device}",
               f"--threads={options.threads}", variant]
    row = {"shape": shape, "precision": precision, "scheme": scheme, "torch": {}}
    with Program("ours", command, environment(options.threads)) as ours:
        row["dimensions"] = dims = ours.ready
        if "tokens" not in dims or "flops_per_token" not in dims:
            raise ProgramError(f"{options.program} does not describe its model: it is no train_benchmark")
        dimensions = json.dumps(dims | {"threads": options.threads})
        for mode in ("eager", "compiled")[:1 + options.compile]:
            twin = [sys.executable, str(TWIN), "--work", mode, dimensions]
            try:
                with Program(mode, twin, torch_environment(options.threads)) as peer:
                    refuse_hopeless(peer, dims, options)
                    rounds = alternate(ours, peer, options)
                    row["torch"][mode] = summary(rounds, dims, mode) | {"set_up": peer.ready,
                                                                        "rounds": rounds}
            except ProgramError as error:
                if ours.process.poll() is not None:
                    raise
                row["torch"][mode] = {"error": str(error)}
    return row


def better_mode(row):
    """PyTorch's better mode is the one over which our ratio is smaller; None where all failed."""
    worked = {mode: result for mode, result in row["torch"].items() if "ratio" in result}
    return min(worked, key=lambda mode: worked[mode]["ratio"]["median"], default=None)


HEADINGS = ("shape", "precision", "scheme", "eager tok/s", "compiled tok/s", "ours tok/s",
            "ours / better", "of ceiling: torch", "ours", "peak RSS GiB: torch", "ours", "ours / torch")


def markdown_head():
    return f"| {' | '.join(HEADINGS)} |\n|{'---|' * len(HEADINGS)}"


def markdown_row(row):
    def torch_speed(mode):
        result = row["torch"].get(mode, {})
        if "ratio" in result:
            return f"{result['torch']['tokens_per_second']['median']:.0f}"
        return "failed" if "error" in result else "-"

    cells = [row["shape"], row["precision"], row["scheme"], torch_speed("eager"), torch_speed("compiled")]
    mode = better_mode(row)
    if mode is None:
        return f"| {' | '.join(cells + ['-'] * (len(HEADINGS) - len(cells)))} |"
    result = row["torch"][mode]
    ratio, ours, torch = result["ratio"], result["ours"], result["torch"]
    cells += [f"{ours['tokens_per_second']['median']:.0f}",
              f"{ratio['median']:.2f} ({ratio['min']:.2f} to {ratio['max']:.2f})",
              f"{torch['of_ceiling']['median']:.0%}", f"{ours['of_ceiling']['median']:.0%}",
              f"{torch['peak_rss_bytes'] / GIB:.2f}", f"{ours['peak_rss_bytes'] / GIB:.2f}",
              f"{ours['peak_rss_bytes'] / torch['peak_rss_bytes']:.2f}"]
    return f"| {' | '.join(cells)} |"


def notes(rows):
    """What a reader of the table must know of it, as lines of Markdown."""
    imported = [result["set_up"]["imported_rss_bytes"] for row in rows for result in row["torch"].values()
                if "set_up" in result]
    if imported:
        yield f"- PyTorch's peak RSS holds {max(imported) / GIB:.2f} GiB that importing it takes"
    for row in rows:
        for mode, result in row["torch"].items():
            where = f"{row['shape']} {row['precision']} {row['scheme']}, {mode}"
            if "error" in result:
                yield f"- {where}: {' '.join(result['error'].split())[:200]}"
            elif result["idle_cores"] > 0.02:
                yield f"- {where}: the idle program took {result['idle_cores']:.0%} of a core"


def machine():
    return {"cpu": cpu_field("model name"), "cores": len(os.sched_getaffinity(0)),
            "kernel": platform.release(), "load_before": os.getloadavg()[0],
            "time": datetime.datetime.now().astimezone().isoformat(timespec="seconds")}


def check_golden_file(path):
    """Refuses what is no safetensors file with a model's loss in it."""
    if not os.path.isfile(path):
        refuse(f"{path} is no file: --check takes files of tests/golden")
    try:
        with open(path, "rb") as file:
            size = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(size)) if size <= MOST_CHARACTERS else None
    except (OSError, ValueError) as error:
        refuse(f"{path} cannot be read as safetensors: {error}")
    metadata = header.get("__metadata__") if isinstance(header, dict) else None
    if not (isinstance(metadata, dict) and "scheme" in metadata and "loss" in header):
        refuse(f"{path} holds no model's loss: --check takes files tests/golden/lm_*.safetensors")


def parse_options():
    def names(text):
        return text.split(",")

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--program", default=str(PROGRAM), help="train_benchmark (%(default)s)")
    parser.add_argument("--shapes", type=names, default="S,M,124M,400M")
    parser.add_argument("--schemes", type=names, default="PRE_NORM,SIAMESE_HYBRID_PRE,SIAMESE_POST_PRE")
    parser.add_argument("--precisions", type=names, default="FP32,BF16")
    parser.add_argument("--device", default="CPU", help="CPU or CUDA (%(default)s)")
    parser.add_argument("--job", default="", metavar="TEXT",
                        help="merged over every shape's job, such as 'train { global_batch: 16 microbatch: 16 }'")
    parser.add_argument("--rounds", type=int, default=5, help="blocks of each program (%(default)s)")
    parser.add_argument("--steps", type=int, default=2, help="steps of a block (%(default)s)")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, default=True,
                        help="also compare with torch.compile; the better of both counts")
    parser.add_argument("--slowest", type=float, default=60, metavar="SECONDS",
                        help="a PyTorch whose products let a step take longer is not run (%(default)s)")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="writes everything measured")
    parser.add_argument("--check", nargs="+", metavar="GOLDEN_FILE",
                        help="only compares the twin's loss and gradients with these files")
    options = parser.parse_args()
    if options.rounds < 1 or options.steps < 1 or options.threads < 1:
        parser.error("--rounds, --steps and --threads are at least 1")
    for path in options.check or ():
        check_golden_file(path)
    if not options.check and not (os.path.isfile(options.program) and os.access(options.program, os.X_OK)):
        refuse(f"{options.program} is no program: build it (ninja -C build train_benchmark) or name it "
               "with --program")
    try:
        if options.json:
            options.json.open("a").close()
    except OSError as error:
        refuse(f"--json={options.json}: {error.strerror}; name a file that can be written")
    return options


def main():
    options = parse_options()
    version = torch_version()
    if options.check:
        command = [sys.executable, str(TWIN), "--check", *options.check]
        sys.exit(subprocess.run(command, check=False).returncode)
    report = {"machine": machine(), "torch": version, "threads": options.threads,
              "rounds": options.rounds, "steps": options.steps, "rows": []}
    print(f"PyTorch {version}, {options.threads} threads, {report['machine']['cpu']}; medians of "
          f"{options.rounds} rounds of {options.steps} steps in turn (smallest to largest)\n")
    print(markdown_head(), flush=True)
    for shape in options.shapes:
        for precision in options.precisions:
            for scheme in options.schemes:
                try:
                    row = compare(options, shape, precision, scheme)
                except ProgramError as error:
                    refuse(f"{shape} {precision} {scheme}: {error}")
                print(markdown_row(row), flush=True)
                report["rows"].append(row)
                if options.json:  # after every row: a long run may be stopped
                    options.json.write_text(json.dumps(report, indent=1) + "\n")
    print("\n".join(["", *notes(report["rows"])]))


if __name__ == "__main__":
    main()
