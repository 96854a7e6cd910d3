"""The benchmark's language model in plain PyTorch: the peer that compare_torch.py starts.

    torch_twin.py --work MODE DIMENSIONS    trains by the line protocol of train_benchmark --interactive;
                                            MODE: eager or compiled, DIMENSIONS: its ready line
    torch_twin.py --check GOLDEN_FILE...    compares loss and gradients with tests/golden

Parameters have the names and shapes of the project's checkpoints, and the mathematics is that of
docs/residual.md. Streams and activations are [batch, sequence, hidden]; precision BF16 is autocast over
float32 weights.
"""
import json
import math
import pathlib
import resource
import struct
import sys
import time

import torch
from torch import nn
from torch.nn import functional

EPSILON = 1e-5
ROPE_THETA = 10000.0
TWO_STREAMS = ("SIAMESE_HYBRID_PRE", "SIAMESE_POST_PRE")


class RmsNorm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        # PyTorch's fused kernel wants one type; its statistics are float32 all the same.
        return functional.rms_norm(x, self.weight.shape, self.weight.to(x.dtype), EPSILON)


class Sublayer(nn.Module):
    """A residual block and its residual scheme: maps the streams (x, y) to the next (x, y)."""

    def __init__(self, dims, layer, kind):
        super().__init__()
        scheme, hidden = dims["scheme"], dims["hidden"]
        self.branch_scale = 1 / math.sqrt(2 * (layer + 1))
        self.two_streams = scheme in TWO_STREAMS
        hybrid_attention = scheme == "SIAMESE_HYBRID_PRE" and kind == "attention"
        self.scales_x = hybrid_attention and layer > 0
        self.norms_sum = self.two_streams and not hybrid_attention
        if self.scales_x:
            self.x_scale = nn.Parameter(torch.ones(hidden))
        else:
            self.x_norm = RmsNorm(hidden)
        if self.two_streams:
            self.y_norm = RmsNorm(hidden)
        if self.norms_sum:
            self.input_norm = RmsNorm(hidden)

    def forward(self, x, y):
        if not self.two_streams:
            return x + self.block(self.x_norm(x)), y
        if self.norms_sum:
            x = self.x_norm(x)
            h = self.input_norm(x + self.y_norm(y))
        elif self.scales_x:
            h = torch.addcmul(self.y_norm(y), self.x_scale, x)
        else:
            h = self.x_norm(x) + self.y_norm(y)
        o = self.block(h)
        return torch.add(x, o, alpha=self.branch_scale), y + o


class Attention(Sublayer):
    def __init__(self, dims, layer):
        super().__init__(dims, layer, "attention")
        hidden, self.heads = dims["hidden"], dims["heads"]
        self.key_heads = dims.get("kv_heads", self.heads)
        self.head_width = dims.get("head_dim", hidden // self.heads)
        rows = (self.heads + 2 * self.key_heads) * self.head_width
        self.qkv = nn.Linear(hidden, rows, bias=False)
        self.out = nn.Linear(self.heads * self.head_width, hidden, bias=False)
        hybrid = dims["scheme"] == "SIAMESE_HYBRID_PRE"
        normed = "qkv" if hybrid else "qk" if dims.get("qk_norm") else ""
        for name in normed:
            self.add_module(f"{name}_norm", RmsNorm(self.head_width))
        self.normed = normed
        angle = torch.outer(
            torch.arange(dims["sequence"], dtype=torch.float64),
            ROPE_THETA ** (-torch.arange(0, self.head_width, 2, dtype=torch.float64) / self.head_width))
        self.register_buffer("cosine", angle.cos().float(), persistent=False)  # [sequence, head_width / 2]
        self.register_buffer("sine", angle.sin().float(), persistent=False)

    def rotate(self, x):  # [batch, heads, sequence, head_width]
        first, second = x.chunk(2, dim=-1)
        cosine, sine = self.cosine.to(x.dtype), self.sine.to(x.dtype)
        return torch.cat((first * cosine - second * sine, second * cosine + first * sine), dim=-1)

    def block(self, h):
        batch, sequence, _ = h.shape
        heads = self.qkv(h).view(batch, sequence, -1, self.head_width).transpose(1, 2)
        q, k, v = heads.split((self.heads, self.key_heads, self.key_heads), dim=1)
        if self.normed:
            q, k = self.q_norm(q), self.k_norm(k)
        if self.normed == "qkv":
            v = self.v_norm(v)
        o = functional.scaled_dot_product_attention(
            self.rotate(q), self.rotate(k), v, is_causal=True,
            **({"enable_gqa": True} if self.key_heads < self.heads else {}))
        return self.out(o.transpose(1, 2).reshape(batch, sequence, -1))


class Mlp(Sublayer):
    def __init__(self, dims, layer):
        super().__init__(dims, layer, "mlp")
        self.up = nn.Linear(dims["hidden"], 2 * dims["ffn"], bias=False)
        self.down = nn.Linear(dims["ffn"], dims["hidden"], bias=False)

    def block(self, h):
        value, gate = self.up(h).chunk(2, dim=-1)
        return self.down(functional.silu(gate) * value)


class LanguageModel(nn.Module):
    def __init__(self, dims):
        super().__init__()
        hidden = dims["hidden"]
        self.z_loss = dims.get("z_loss", 0.0)
        self.embedding = nn.Embedding(dims["vocabulary"], hidden)
        self.layers = nn.ModuleList(
            nn.ModuleDict({"attention": Attention(dims, layer), "mlp": Mlp(dims, layer)})
            for layer in range(dims["layers"]))
        ends = ("x_norm", "y_norm", "norm") if dims["scheme"] in TWO_STREAMS else ("norm",)
        self.final = nn.ModuleDict({name: RmsNorm(hidden) for name in ends})
        if not dims["tied"]:
            self.head = nn.Linear(hidden, dims["vocabulary"], bias=False)
        for weight in self.parameters():
            if weight.dim() == 2:
                nn.init.normal_(weight, std=0.02)

    def forward(self, tokens):
        """The loss of tokens[:, 1:] given those before, of int64 tokens [batch, sequence + 1]."""
        x = y = self.embedding(tokens[:, :-1])
        for layer in self.layers:
            x, y = layer["attention"](x, y)
            x, y = layer["mlp"](x, y)
        if "y_norm" in self.final:
            x = self.final["x_norm"](x) + self.final["y_norm"](y)
        head = self.head if hasattr(self, "head") else self.embedding
        logits = functional.linear(self.final["norm"](x), head.weight).flatten(0, 1)
        loss = functional.cross_entropy(logits, tokens[:, 1:].flatten())
        if self.z_loss:
            loss = loss + self.z_loss * logits.logsumexp(-1).square().mean()
        return loss


def make_optimizer(model):
    """AdamW of the fastest kind that this PyTorch has; decay on matrices only."""
    weights = list(model.parameters())
    groups = [{"params": [w for w in weights if w.dim() == 2], "weight_decay": 0.1},
              {"params": [w for w in weights if w.dim() == 1], "weight_decay": 0.0}]
    options = {"lr": 1e-4, "betas": (0.9, 0.95), "eps": 1e-8}
    try:
        return torch.optim.AdamW(groups, fused=True, **options), "fused"
    except RuntimeError:
        return torch.optim.AdamW(groups, foreach=True, **options), "foreach"


def torch_device(dims):
    return "cuda" if dims.get("device") == "CUDA" else "cpu"


class Training:
    def __init__(self, dims, mode):
        torch.manual_seed(1)
        self.device = torch_device(dims)
        self.model = LanguageModel(dims).to(self.device)
        self.optimizer, self.optimizer_kind = make_optimizer(self.model)
        self.loss = torch.compile(self.model, dynamic=False) if mode == "compiled" else self.model
        self.bf16 = dims["precision"] == "BF16"
        self.batch = (dims["batch"], dims["sequence"] + 1)
        self.vocabulary = dims["vocabulary"]

    def step(self):
        """One step on new random tokens; returns the loss before it."""
        tokens = torch.randint(self.vocabulary, self.batch, device=self.device)
        with torch.autocast(self.device, torch.bfloat16, enabled=self.bf16):
            loss = self.loss(tokens)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss.item()


def product_gflops(dims):
    """GFLOP/s of PyTorch's own product, of the size that train_benchmark takes on the device: the best of
    three, of one where it is very slow."""
    device = torch_device(dims)
    dtype = torch.bfloat16 if dims["precision"] == "BF16" else torch.float32
    extent = 8192 if device == "cuda" else 2048
    a, b = (torch.randn(extent, extent, device=device).to(dtype) for _ in range(2))
    best = math.inf
    for _ in range(3):
        synchronize(device)
        begin = time.perf_counter()
        functional.linear(a, b)
        synchronize(device)
        best = min(best, time.perf_counter() - begin)
        if best > 2:
            break
    return 2 * extent**3 / best * 1e-9


def synchronize(device):
    if device == "cuda":
        torch.cuda.synchronize()


def peak_rss_bytes():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def say(answer):
    print(json.dumps(answer), flush=True)


def work(mode, dims):
    """Answers every line with a number N by N steps; an error ends the work with {"error": ...}."""
    imported_rss_bytes = peak_rss_bytes()
    torch.set_num_threads(dims["threads"])
    torch.set_flush_denormal(True)
    try:
        training = Training(dims, mode)
        say({"torch": torch.__version__, "capability": torch.backends.cpu.get_cpu_capability(),
             "adamw": training.optimizer_kind, "threads": torch.get_num_threads(),
             "imported_rss_bytes": imported_rss_bytes, "product_gflops": product_gflops(dims)})
        for line in sys.stdin:
            seconds = []
            for _ in range(int(line)):
                begin = time.perf_counter()
                loss = training.step()
                seconds.append(time.perf_counter() - begin)
            peak = peak_rss_bytes()  # before the product's own matrices
            say({"seconds": seconds, "loss": loss, "peak_rss_bytes": peak,
                 "product_gflops": product_gflops(dims)})
    except Exception as error:  # whatever torch.compile stumbles over belongs in the table
        say({"error": f"{type(error).__name__}: {str(error).strip()}"[:500]})
        raise


def read_safetensors(path):
    """{name: tensor}, metadata."""
    data = bytearray(pathlib.Path(path).read_bytes())
    size = struct.unpack_from("<Q", data)[0]
    header = json.loads(data[8:8 + size])
    metadata = header.pop("__metadata__")
    dtypes = {"F32": torch.float32, "F64": torch.float64, "I32": torch.int32}
    tensors = {}
    for name, entry in header.items():
        begin, end = (8 + size + offset for offset in entry["data_offsets"])
        tensors[name] = torch.frombuffer(data[begin:end], dtype=dtypes[entry["dtype"]]).view(entry["shape"])
    return tensors, metadata


def check(path):
    """Errors of loss and gradients against one golden file; exits where they are more than rounding."""
    tensors, metadata = read_safetensors(path)
    dims = {ours: int(metadata[theirs]) for ours, theirs in (
        ("hidden", "dim"), ("layers", "layers"), ("heads", "heads"), ("kv_heads", "kv_heads"),
        ("head_dim", "head_dim"), ("ffn", "ffn"), ("vocabulary", "vocab"), ("sequence", "seq"))}
    dims |= {"scheme": metadata["scheme"], "z_loss": float(metadata["z_loss"]),
             "tied": metadata["tied"] == "True", "qk_norm": metadata["qk_norm"] == "True"}
    model = LanguageModel(dims)
    model.load_state_dict({name.removeprefix("param."): tensor for name, tensor in tensors.items()
                           if name.startswith("param.")})
    loss = model(tensors["tokens"][0].long())
    loss.backward()
    loss_error = abs(loss.item() - tensors["loss"].item())
    gradient_error = 0.0
    for name, weight in model.named_parameters():
        golden = tensors[f"grad.{name}"]
        error = (weight.grad - golden).abs().max() / golden.abs().max()
        gradient_error = max(gradient_error, error.item())
    print(f"{path}: loss {loss_error:.1e}, worst gradient {gradient_error:.1e} of its largest element")
    if not (loss_error < 5e-6 and gradient_error < 1e-5):
        sys.exit(f"{path}: more than float32 rounding")


def main():
    if sys.argv[1:2] == ["--work"] and len(sys.argv) == 4:
        work(sys.argv[2], json.loads(sys.argv[3]))
    elif sys.argv[1:2] == ["--check"] and len(sys.argv) > 2:
        for path in sys.argv[2:]:
            check(path)
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main()
