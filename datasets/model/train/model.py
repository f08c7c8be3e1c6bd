"""A Llama (RMSNorm, RoPE, grouped queries, SwiGLU, untied head)."""
import math

import torch
import torch.nn as nn
import torch.nn.functional as F

NORM_EPS = 1e-5
MASKED = -1e9
CONSTANT_DIMS, CONSTANT = 4, 2.0  # embedding dimensions that start constant, and their value
LOOK_BACK_PAIRS, LOOK_BACK_SHARPNESS = 8, 3.0
ATTENTION_ROWS = 128  # queries per block of training attention


class RMSNorm(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + NORM_EPS) * self.weight


def rotation_frequencies(shape):
    """Frequencies of the head_dim / 2 pairs; only the `rotating_pairs` fastest ones rotate.

    The slow pairs would meet unseen phases beyond the training length.  In the GGUF file their
    entry of rope_freqs.weight is huge, which is the same as the frequency 0.
    """
    n = shape["head_dim"] // 2
    freq = shape["rope_theta"] ** (-torch.arange(n, dtype=torch.float64) / n)
    freq[shape["rotating_pairs"]:] = 0
    return freq


def rotate(x, cos, sin):
    """Pairs are (i, i + head_dim / 2); the export permutes rows to neighbouring pairs."""
    half = x.shape[-1] // 2
    a, b = x[..., :half], x[..., half:]
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


class Attention(torch.autograd.Function):
    """Attention of q [batch][kv][group][t][hd] (scaled) over k, v [batch][kv][t][hd] with a
    causal bias [batch][kv or 1][t][t].

    Its own backward pass, as that of the plain operations copies more than it computes.
    """

    @staticmethod
    def forward(ctx, q, k, v, bias):
        batch, n_kv, group, t, hd = q.shape
        flat_k, flat_v = k.reshape(-1, t, hd), v.reshape(-1, t, hd)
        y, probabilities = torch.empty_like(q), []
        for start in range(0, t, ATTENTION_ROWS):  # keys after the block are never computed
            end = min(t, start + ATTENTION_ROWS)
            n = end - start
            scores = torch.bmm(q[:, :, :, start:end].reshape(-1, group * n, hd),
                               flat_k[:, :end].transpose(1, 2))
            scores = scores.float().view(batch, n_kv, group, n, end)
            scores += bias[:, :, None, start:end, :end]
            p = torch.softmax(scores, -1).to(v.dtype).view(-1, group * n, end)
            y[:, :, :, start:end] = torch.bmm(p, flat_v[:, :end]).view(batch, n_kv, group, n, hd)
            probabilities.append(p)
        ctx.save_for_backward(q, flat_k, flat_v, *probabilities)
        return y

    @staticmethod
    def backward(ctx, dy):
        q, k, v, *probabilities = ctx.saved_tensors
        batch, n_kv, group, t, hd = q.shape
        dq = torch.empty_like(q)
        dk, dv = (torch.zeros_like(x, dtype=torch.float) for x in (k, v))
        for start, p in zip(range(0, t, ATTENTION_ROWS), probabilities):
            end = min(t, start + ATTENTION_ROWS)
            n = end - start
            d = dy[:, :, :, start:end].reshape(-1, group * n, hd)
            dv[:, :end] += torch.bmm(p.transpose(1, 2), d)
            dp = torch.bmm(d, v[:, :end].transpose(1, 2))
            ds = torch._softmax_backward_data(dp, p, -1, p.dtype)
            dq[:, :, :, start:end] = torch.bmm(ds, k[:, :end]).view(batch, n_kv, group, n, hd)
            dk[:, :end] += torch.bmm(ds.transpose(1, 2),
                                     q[:, :, :, start:end].reshape(-1, group * n, hd))
        shape = (batch, n_kv, t, hd)
        return dq, dk.view(shape).to(q.dtype), dv.view(shape).to(q.dtype), None


class Block(nn.Module):
    def __init__(self, shape):
        super().__init__()
        d, hd, ff = shape["dim"], shape["head_dim"], shape["ff"]
        self.n_kv, self.group, self.hd = shape["kv_heads"], shape["heads"] // shape["kv_heads"], hd
        self.attn_norm, self.ffn_norm = RMSNorm(d), RMSNorm(d)
        self.q = nn.Linear(d, shape["heads"] * hd, bias=False)
        self.k = nn.Linear(d, self.n_kv * hd, bias=False)
        self.v = nn.Linear(d, self.n_kv * hd, bias=False)
        self.o = nn.Linear(shape["heads"] * hd, d, bias=False)
        self.gate = nn.Linear(d, ff, bias=False)
        self.up = nn.Linear(d, ff, bias=False)
        self.down = nn.Linear(ff, d, bias=False)

    def project(self, x, cos, sin):
        """q [batch][kv][group][t][hd] scaled by 1/sqrt(hd); k, v [batch][kv][t][hd]."""
        batch, t, _ = x.shape
        h = self.attn_norm(x)
        q = self.q(h).view(batch, t, self.n_kv * self.group, self.hd).transpose(1, 2)
        k = self.k(h).view(batch, t, self.n_kv, self.hd).transpose(1, 2)
        v = self.v(h).view(batch, t, self.n_kv, self.hd).transpose(1, 2)
        q, k = rotate(q, cos, sin) / math.sqrt(self.hd), rotate(k, cos, sin)
        return q.view(batch, self.n_kv, self.group, t, self.hd), k, v

    def finish(self, x, y):
        """x plus the attention output y [batch][kv][group][t][hd], then the feed-forward net."""
        batch, _, _, t, _ = y.shape
        x = x + self.o(y.permute(0, 3, 1, 2, 4).reshape(batch, t, -1))
        h = self.ffn_norm(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))

    def forward(self, x, cos, sin, bias, rows=()):
        """bias [batch][kv or 1][t][t], causal, is added to the scores.

        Also returns the attention of each of `rows`, (batch indices, positions).
        """
        q, k, v = self.project(x, cos, sin)
        y = Attention.apply(q.to(v.dtype), k.to(v.dtype), v, bias)
        return self.finish(x, y), [self._attention_of(some, q, k, bias) for some in rows]

    def _attention_of(self, rows, q, k, bias):
        """Attention [row][kv][group][t] of rows = (batch indices, positions)."""
        i, pos = rows
        order = torch.argsort(i, stable=True)
        scores = [torch.einsum("kgrd,ktd->rkgt", q[b][:, :, pos[i == b]].float(), k[b].float())
                  for b in i.unique().tolist()]  # text by text: a copy of k per row takes longer
        scores = torch.cat(scores)[torch.argsort(order)]
        return torch.softmax(scores + bias[i, :, pos][:, :, None], -1)


class Model(nn.Module):
    def __init__(self, shape, vocab_size):
        super().__init__()
        d, n_layers = shape["dim"], shape["layers"]
        self.shape = shape
        self.embed = nn.Embedding(vocab_size, d)
        self.head = nn.Linear(d, vocab_size, bias=False)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(n_layers))
        self.norm = RMSNorm(d)
        self.register_buffer("freq", rotation_frequencies(shape), persistent=False)
        self._init_weights(n_layers)

    def _init_weights(self, n_layers):
        d = self.shape["dim"]
        # Embeddings of size 1 keep the identity of a token visible in the residual stream.
        nn.init.normal_(self.embed.weight, std=1.0)
        nn.init.normal_(self.head.weight, std=0.02)
        for block in self.blocks:
            for layer in (block.q, block.k, block.v, block.gate, block.up):
                nn.init.normal_(layer.weight, std=d ** -0.5)
            for layer in (block.o, block.down):
                nn.init.normal_(layer.weight, std=(2 * n_layers * layer.weight.shape[1]) ** -0.5)
        # Beyond the first block keys start close to the mean query of their group, so that
        # tokens attend to tokens with a similar content.
        for block in self.blocks[1:]:
            wq = block.q.weight.data.view(block.n_kv, block.group, block.hd, d)
            wk = block.k.weight.data.view(block.n_kv, block.hd, d)
            wk.copy_(0.7 * (wq.mean(1) * block.group ** 0.5 + wk))

        for i, offsets in enumerate(self.shape.get("look_back", [])):
            self._init_look_back(self.blocks[i], offsets)

    def _init_look_back(self, block, offsets):
        """Lets head h of a block start with its attention on the token offsets[h] before it.

        Trained models have such heads in their first layers; to find them takes most of the
        training time.  The first embedding dimensions start constant; what q and k see of them
        is a vector whose score is largest at the wanted distance (offset 0: left as it is).
        """
        self.embed.weight.data[:, :CONSTANT_DIMS] = CONSTANT
        half, n = block.hd // 2, LOOK_BACK_PAIRS
        size = (LOOK_BACK_SHARPNESS * block.hd ** 0.5) ** 0.5 / (CONSTANT_DIMS * CONSTANT)
        wq = block.q.weight.data.view(-1, block.hd, self.shape["dim"])
        wk = block.k.weight.data.view(-1, block.hd, self.shape["dim"])
        freq = self.freq[:n].float()
        for head, offset in enumerate(offsets):
            if offset == 0:
                continue
            query, key = torch.zeros(block.hd), torch.zeros(block.hd)
            query[:n], query[half:half + n] = torch.cos(offset * freq), -torch.sin(offset * freq)
            key[:n] = 1.0
            for weight, vector in ((wq[head], query), (wk[head // block.group], key)):
                weight.mul_(0.1)
                weight[:, :CONSTANT_DIMS] = (size * vector)[:, None]

    def angles(self, positions):
        """cos and sin [batch][1][t][hd/2] of positions [batch][t]."""
        a = positions.double().unsqueeze(-1) * self.freq
        return a.cos().float().unsqueeze(1), a.sin().float().unsqueeze(1)

    def forward(self, ids, positions, bias=None, want=(), key_dropout=0.0, rows=(),
                front=0, front_dropout=None):
        """Final hidden states; {layer: states after it} for the layers in `want`; and for each of
        `rows`, (layer, (batch indices, positions)), the attention of these rows in that layer.

        bias [batch][t][t] is added to the scores of every key in every row.  key_dropout is the
        share of keys that each key-value head does not see from the third layer on; front_dropout
        [batch] is that of the first `front` layers.
        """
        t = ids.shape[1]
        cos, sin = self.angles(positions)
        bias = (torch.zeros(len(ids), t, t) if bias is None else bias).unsqueeze(1)
        bias = bias + torch.full((t, t), MASKED).triu(1)
        x, wanted, seen = self.embed(ids), {}, [None] * len(rows)
        for i, block in enumerate(self.blocks):
            block_bias = bias
            if i < front:
                block_bias = hide_keys(bias, block.n_kv, front_dropout)
            elif key_dropout and i >= 2:
                block_bias = hide_keys(bias, block.n_kv, key_dropout)
            asked = [n for n, (layer, _) in enumerate(rows) if layer == i]
            x, attention = block(x, cos, sin, block_bias, [rows[n][1] for n in asked])
            for n, one in zip(asked, attention):
                seen[n] = one
            if i in want:
                wanted[i] = x
        return self.norm(x), wanted, seen


def hide_keys(bias, n_kv, rate):
    """The bias [batch][kv][t][t] that hides a share of the keys, but never the first, from each
    key-value head; rate is a number, or one for each text."""
    hidden = torch.rand(len(bias), n_kv, bias.shape[-1]) < torch.as_tensor(rate).view(-1, 1, 1)
    hidden[..., 0] = False
    return bias + (hidden * MASKED).unsqueeze(2)


def save(path, model, step, extra=None):
    torch.save({"shape": model.shape, "step": step, "model": model.state_dict(),
                **(extra or {})}, path)


def load(path, vocab_size):
    checkpoint = torch.load(path, map_location="cpu")
    model = Model(checkpoint["shape"], vocab_size)
    model.load_state_dict(checkpoint["model"])
    return model, checkpoint
