"""The methods that both programs have: how each is asked for the same thing.

A Setting says how kvlab is called and makes kvpress' press.  kvlab's budgets count the current token,
so that B - 1 tokens of the context stay; kvpress' ratios say what part goes.
"""
import math
from dataclasses import dataclass
from typing import Callable, Optional

LANE = "lane"  # tokens of a lane compete
LAYER = "layer"  # those of a layer do
ALL = "all"
CHUNKS = "chunks"  # chunks of a layer do, the same ones for all its heads

SNAPKV = "window=%d,kernel=%d,pool=avg,pool_first=true"


def kept_of(n, ratio):
    """What a press of kvpress keeps of n tokens."""
    return max(1, int(n * (1 - ratio)))


@dataclass
class Setting:
    policy: str  # for kvlab
    press: str  # what the table calls it
    make: Callable  # (kvpress, ratio) -> press
    scope: str = LANE
    attention: str = "sdpa"
    least: int = 8  # fewer tokens than this cannot be asked of both
    # (n, ratio, lanes) -> (tokens kept by kvlab, ratio for kvpress)
    count: Callable = lambda n, ratio, lanes: (kept_of(n, ratio), ratio)
    known: Optional[str] = None  # why it is known to differ
    steps: int = 0  # tokens behind the context, after which the press cuts for the first time
    placed: bool = False  # with steps: the press gets the positions of all tokens, not of the newest alone
    # Random numbers of kv heads that both are given: a file for kvlab (%s), an argument more for `make`.  "vectors":
    # head_dim of each, "gates": one, "maps" and "networks": linear maps of hidden states, those with a hidden layer
    given: str = ""
    cuts_context: bool = False  # with steps: the press cuts the context, too
    masks: bool = False  # with steps: the press masks tokens, as they leave a window
    by_ratio: bool = False  # with steps: the ratio in place of tokens is for kvlab (%s) and the press


def exact(n, ratio, lanes):
    """For presses that go on counting with the ratio: the one that kvlab's budget is."""
    kept = kept_of(n, ratio)
    return kept, 1 - kept / n


def pairs(n, ratio, lanes):
    """For presses that count (kv head, token) pairs: the ratio that drops whole tokens per lane."""
    kept = kept_of(n, ratio)
    return kept, (n - kept + 0.5 / lanes) / n


def nearly(n, ratio, lanes):
    """For presses that take parts of what stays: as exact, and never a token less by rounding."""
    kept = kept_of(n, ratio)
    return kept, 1 - (kept + 1e-6) / n


def each_chunk(size):
    """What presses keep of every chunk."""
    def count(n, ratio, lanes):
        kept = kept_of(n, ratio)
        exact_ratio = 1 - kept / n
        sizes = [min(size, n - at) for at in range(0, n, size)]
        return kept, exact_ratio if all(sizes) else ratio
    return count


def chunks(size):
    """The tokens of the chunks that kvpress keeps."""
    return lambda n, ratio, lanes: (size * max(1, int(math.ceil(n / size) * (1 - ratio))), ratio)


def snapkv(window, kernel, **more):
    return Setting("snapkv:" + SNAPKV % (window, kernel),
                   "SnapKVPress(window_size=%d, kernel_size=%d)" % (window, kernel),
                   lambda k, r: k.SnapKVPress(r, window, kernel), least=window + 1, **more)


def pyramidkv(window, beta, **more):
    return Setting("pyramidkv(snapkv:%s):schedule=kvpress,beta=%d" % (SNAPKV % (window, 5), beta),
                   "PyramidKVPress(window_size=%d, beta=%d)" % (window, beta),
                   lambda k, r: k.PyramidKVPress(r, window, 5, beta), least=window + 1, count=exact,
                   **more)


def adakv(inner, press, make, alpha, least=8):
    return Setting("adakv(%s):totals=kvpress,floor_alpha=%g" % (inner, alpha),
                   "AdaKVPress(%s, alpha_safeguard=%g)" % (press, alpha),
                   lambda k, r: k.AdaKVPress(make(k, r), alpha), scope=LAYER, least=least)


def chunkkv(inner, press, make, size, scored=False, **more):
    return Setting("chunkkv(%s):chunk=%d%s" % (inner, size, ",protected=scored" if scored else ""),
                   "ChunkKVPress(%s, chunk_length=%d)" % (press, size),
                   lambda k, r: k.ChunkKVPress(make(k, r), size), scope=CHUNKS,
                   count=exact if scored else chunks(size), **more)


def expected(options="", **arguments):
    text = ", ".join("%s=%s" % item for item in arguments.items())
    return Setting("expected_attention" + (":" + options if options else ""),
                   "ExpectedAttentionPress(%s)" % text,
                   lambda k, r: k.ExpectedAttentionPress(r, **arguments), least=16)


def lagkv(lag, sink, cross=False):
    return Setting("lagkv:lag_size=%d,n_sink=%d%s" % (lag, sink, ",cross_scoring=true" if cross else ""),
                   "LagKVPress(lag_size=%d, n_sink=%d%s)" % (lag, sink, ", cross_scoring=True" if cross else ""),
                   lambda k, r: k.LagKVPress(r, sink, lag, cross), least=sink + 4)


def kvzip(options="", scope=ALL, **arguments):
    text = ", ".join("%s=%s" % item for item in arguments.items())
    return Setting("kvzip" + (":" + options if options else ""), "KVzipPress(%s)" % text,
                   lambda k, r: k.KVzipPress(r, **arguments), scope=scope, least=16, count=pairs)


def in_place(press):
    """A press that moves keys, without that: positions are told by the keys."""
    press.rerotate_keys = lambda module, indices, keys: keys.gather(
        2, indices.unsqueeze(-1).expand(-1, -1, -1, module.head_dim)).contiguous()
    return press


def exact_leverage(press):
    """Without a random sketch: the keys themselves."""
    def scores(key_states, sketch_dimension):
        import torch

        x = key_states - key_states.mean(dim=-2, keepdim=True)
        gram = x.transpose(-2, -1) @ x + 0.01 * torch.eye(x.shape[-1])
        return (x * torch.linalg.solve(gram, x.transpose(-2, -1)).transpose(-2, -1)).sum(-1)
    getattr(press, "_leverage_press", press).compute_leverage_scores = scores
    return press


def finch(k, ratio, window, **more):
    """FINCH without the delimiter that tells the question apart, and without moving keys."""
    press = k.FinchPress(ratio, rerotate_keys=False, **more)
    press.window_size = window
    press.delimiter_token_id = -1
    press.embed_token_forward_hook = lambda module, given, output: output
    return press


def decode(inner, press, make, steps, **more):
    return Setting("decode(%s):cut_context=false,target=%%d,interval=%d" % (inner, steps),
                   "DecodingPress(%s, compression_interval=%d)" % (press, steps),
                   lambda k, kept: k.DecodingPress(make(k), compression_interval=steps,
                                                   target_size=kept), steps=steps, **more)


def both(k, kept, context, steps):
    """A press for the context and one behind it, which leave as many."""
    ratio = 1 - (kept + 1e-6) / context
    return k.PrefillDecodingPress(k.KnormPress(ratio), k.DecodingPress(
        k.KnormPress(), compression_interval=steps, target_size=kept))


def filters(k, ratio, vectors):
    class Filters(k.QFilterPress):
        def post_init_from_model(self, model):
            """They are given."""
    press = Filters(ratio)
    press.q_filters = vectors
    return press


def duo(k, share, sink, recent, gates):
    class Duo(k.DuoAttentionPress):
        def load_attention_pattern(self, model):
            return sink, recent, gates
    return Duo(share)


def zap(k, ratio, networks):
    class Zap(k.KVzapPress):
        def post_init_from_model(self, model):
            """They are given."""
    press = Zap(ratio)
    press.kvzap_model = networks
    return press


def lagging(k, ratio):
    return k.LagKVPress(ratio, lag_size=16)


EXPECTED = "expected_attention:use_vnorm=false"
SNAP32 = "snapkv:" + SNAPKV % (32, 5)

# kvpress' names that no row has, and why.
NOT_COMPARED = {
    "BasePress": "the others' base",
    "ScorerPress": "the others' base",
    "ComposedPress": "one press after another; a wrapper over one policy is as far as kvlab goes",
    "RandomPress": "random numbers of another generator: `random:mode=evict`, a bound",
    "ExpectedAttentionStatsPress": "moments of other texts from a hub; `expected_attention` takes the context's",
    "ThinKPress": "drops channels and no tokens",
    "FastKVzipPress": "trained weights from a hub",
    "RestoreKVPress": "trained embeddings and an adapter from a hub",
    "KVgradPress": "a backward pass",
    "LUKVPress": "budget curves of another model from a hub; no policy here",
    "MergingPress": "rewrites values; no policy here",
    "CAMPress": "rewrites values; no policy here",
}

SETTINGS = [
    snapkv(64, 5), snapkv(32, 7), snapkv(16, 1),
    pyramidkv(64, 20), pyramidkv(8, 20), pyramidkv(8, 5),
    adakv("snapkv:" + SNAPKV % (32, 5), "SnapKVPress(window_size=32)",
          lambda k, r: k.SnapKVPress(r, 32, 5), 0.2, least=40),
    adakv("snapkv:" + SNAPKV % (16, 5), "SnapKVPress(window_size=16)",
          lambda k, r: k.SnapKVPress(r, 16, 5), 0.9, least=20),
    adakv("expected_attention:epsilon=0.01", "ExpectedAttentionPress(epsilon=0.01)",
          lambda k, r: k.ExpectedAttentionPress(r, epsilon=0.01), 0.2),
    adakv("keydiff:block=0", "KeyDiffPress()", lambda k, r: k.KeyDiffPress(r), 0.2),
    adakv("lagkv:lag_size=32,cross_scoring=true", "LagKVPress(lag_size=32, cross_scoring=True)",
          lambda k, r: k.LagKVPress(r, lag_size=32, cross_scoring=True), 0.2),
    chunkkv("keydiff:block=0", "KeyDiffPress()", lambda k, r: k.KeyDiffPress(r), 20),
    chunkkv("knorm", "KnormPress()", lambda k, r: k.KnormPress(r), 7),
    chunkkv("snapkv:" + SNAPKV % (32, 5), "SnapKVPress(window_size=32)",
            lambda k, r: k.SnapKVPress(r, 32, 5), 20, scored=True, least=33),
    chunkkv("snapkv:" + SNAPKV % (32, 5), "SnapKVPress(window_size=32)",
            lambda k, r: k.SnapKVPress(r, 32, 5), 20, least=53,
            known="the window stays beside the chunks: `protected=scored` is kvpress"),
    chunkkv("expected_attention", "ExpectedAttentionPress()",
            lambda k, r: k.ExpectedAttentionPress(r), 20, scored=True),
    chunkkv("expected_attention:n_sink=1", "ExpectedAttentionPress(n_sink=1)",
            lambda k, r: k.ExpectedAttentionPress(r, n_sink=1), 50, scored=True, least=50),
    chunkkv("expected_attention", "ExpectedAttentionPress()",
            lambda k, r: k.ExpectedAttentionPress(r), 20, least=25,
            known="the first four tokens stay beside the chunks"),
    expected(), expected("epsilon=0.01", epsilon=0.01),
    expected("use_covariance=false", use_covariance=False),
    expected("use_vnorm=false", use_vnorm=False),
    expected("n_future=64,n_sink=16", n_future_positions=64, n_sink=16),
    Setting("keydiff:block=0", "KeyDiffPress()", lambda k, r: k.KeyDiffPress(r)),
    Setting("keydiff:block=128", "BlockPress(KeyDiffPress(), block_size=128)",
            lambda k, r: k.BlockPress(k.KeyDiffPress(r), 128)),
    Setting("keydiff:block=16", "BlockPress(KeyDiffPress(), block_size=16)",
            lambda k, r: k.BlockPress(k.KeyDiffPress(r), 16)),
    Setting("knorm", "KnormPress()", lambda k, r: k.KnormPress(r)),
    Setting("tova:mode=oneshot,keep_newest=true", "TOVAPress()", lambda k, r: k.TOVAPress(r)),
    Setting("streaming_llm:positions=original", "StreamingLLMPress()",
            lambda k, r: k.StreamingLLMPress(r)),
    Setting("streaming_llm:positions=original,sink=16", "StreamingLLMPress(n_sink=16)",
            lambda k, r: k.StreamingLLMPress(r, 16), least=20),
    lagkv(128, 4), lagkv(32, 16), lagkv(64, 0), lagkv(64, 4, cross=True),
    kvzip(), kvzip("layerwise=true", LAYER, layerwise=True),
    kvzip("plus=true", kvzip_plus_normalization=True), kvzip("chunk_size=96", chunk_size=96),
    Setting("h2o:variant=observed_attention", "ObservedAttentionPress()",
            lambda k, r: k.ObservedAttentionPress(r), attention="eager"),
    Setting("curdkv", "CURPress()", lambda k, r: k.CURPress(r)),
    Setting("curdkv:leverage=mean,local=0,n_sink=8",
            "CURPress(num_sinks=8, leverage_type=kv_avg, use_local_approximation=False)",
            lambda k, r: k.CURPress(r, 8, "kv_avg", False, False), least=12),
    Setting("leverage:sketch=0", "LeverageScorePress(), exact",
            lambda k, r: exact_leverage(k.LeverageScorePress(r))),
    Setting("noncausal", "NonCausalAttnPress()", lambda k, r: k.NonCausalAttnPress(r)),
    Setting("noncausal:chunk=96", "NonCausalAttnPress(chunk_size=96)",
            lambda k, r: k.NonCausalAttnPress(r, 96)),
    Setting("compactor:sketch=0", "CompactorPress(), exact",
            lambda k, r: exact_leverage(k.CompactorPress(r)), least=20, count=nearly),
    Setting("compactor:sketch=0,chunk=100,blending=0.35", "CompactorPress(chunk_size=100, blending=0.35), exact",
            lambda k, r: exact_leverage(k.CompactorPress(r, chunk_size=100, blending=0.35)), least=20),
    Setting("capkv", "CapPress()", lambda k, r: k.CapPress(r), least=16),
    Setting("criticalkv(%s)" % SNAP32, "CriticalKVPress(SnapKVPress(window_size=32))",
            lambda k, r: k.CriticalKVPress(k.SnapKVPress(r, 32, 5)), least=70, count=nearly),
    Setting("criticalkv(%s):epsilon=0.0001" % EXPECTED,
            "CriticalKVPress(ExpectedAttentionPress(use_vnorm=False))",
            lambda k, r: k.CriticalKVPress(k.ExpectedAttentionPress(r, use_vnorm=False)), least=16,
            count=nearly),
    Setting("criticalada(%s):epsilon=0.0001" % EXPECTED,
            "CriticalAdaKVPress(ExpectedAttentionPress(use_vnorm=False))",
            lambda k, r: k.CriticalAdaKVPress(k.ExpectedAttentionPress(r, use_vnorm=False)),
            scope=LAYER, least=24, count=nearly),
    Setting("block(knorm):size=64", "BlockPress(KnormPress(), block_size=64)",
            lambda k, r: k.BlockPress(k.KnormPress(r), 64)),
    Setting("block(keydiff:block=0):size=100", "BlockPress(KeyDiffPress(), block_size=100)",
            lambda k, r: k.BlockPress(k.KeyDiffPress(r), 100)),
    Setting("chunk(knorm):size=100,exact=false", "ChunkPress(KnormPress(), chunk_length=100)",
            lambda k, r: k.ChunkPress(k.KnormPress(r), 100), count=each_chunk(100)),
    Setting("chunk(curdkv):size=100,exact=false", "ChunkPress(CURPress(), chunk_length=100)",
            lambda k, r: k.ChunkPress(k.CURPress(r), 100), count=each_chunk(100), least=16),
    Setting("entropychunkkv(knorm)", "EntropyGatedChunkKVPress(KnormPress())",
            lambda k, r: k.EntropyGatedChunkKVPress(k.KnormPress(r)), scope=LAYER, count=nearly),
    Setting("entropychunkkv(%s):chunk=20,few=7" % SNAP32,
            "EntropyGatedChunkKVPress(SnapKVPress(window_size=32), chunk_length=20, low_entropy_chunk_length=7)",
            lambda k, r: k.EntropyGatedChunkKVPress(k.SnapKVPress(r, 32, 5), 20, 7), scope=LAYER,
            least=33, count=nearly),
    Setting("per_layer(knorm):kept=1", "PerLayerCompressionPress(KnormPress(), the same ratio)",
            lambda k, r: k.PerLayerCompressionPress(k.KnormPress(), [r] * 99)),
    Setting("key_rerotation(knorm)", "KeyRerotationPress(KnormPress()), in place",
            lambda k, r: in_place(k.KeyRerotationPress(k.KnormPress(r)))),
    Setting("finch:window=24", "FinchPress(), window of 24, in place",
            lambda k, r: finch(k, r, 24), least=26),
    Setting("finch:window=16,normalize=false", "FinchPress(normalize_scores=False), window of 16, in place",
            lambda k, r: finch(k, r, 16, normalize_scores=False), least=18),
    Setting("simlayerkv:threshold=0.3,n_recent=64", "SimLayerKVPress(0.3, n_recent=64)",
            lambda k, r: k.SimLayerKVPress(0.3, 1, 64, 4), least=80),
    Setting("dms(knorm):threshold=-4,window=32", "DMSPress(KnormPress(), threshold=-4, sliding_window_size=32)",
            lambda k, r: k.DMSPress(k.KnormPress(), -4, 32), least=40),
    Setting("qfilters:table=%s", "QFilterPress()", filters, given="vectors"),
    Setting("kvzap:weights=%s", "KVzapPress(linear)", zap, given="maps"),
    Setting("kvzap:weights=%s", "KVzapPress(mlp)", zap, given="networks"),
    Setting("adakv(kvzap:weights=%s):totals=kvpress,floor_alpha=0.2", "AdaKVPress(KVzapPress(mlp), alpha_safeguard=0.2)",
            lambda k, r, networks: k.AdaKVPress(zap(k, r, networks), 0.2), scope=LAYER, given="networks"),
    Setting("dms(kvzap:weights=%s):threshold=0.1,window=32",
            "DMSPress(KVzapPress(mlp), threshold=0.1, sliding_window_size=32)",
            lambda k, r, networks: k.DMSPress(zap(k, 0, networks), 0.1, 32), least=40, given="networks"),
    # kvlab's window has the current token, too; the budget is what sink and window need
    Setting("duo_attention:table=%s,sparsity=0.5,sink=16,recent=65", "DuoAttentionPress(0.5), sink 16, recent 64",
            lambda k, r, gates: duo(k, .5, 16, 64, gates), given="gates",
            count=lambda n, ratio, lanes: (n - 1, ratio)),
    Setting("kvcompose", "KVComposePress()", lambda k, r: k.KVComposePress(compression_ratio=r),
            scope=ALL, attention="eager", count=nearly),
    Setting("kvcompose:structured=false", "KVComposePress(structured=False)",
            lambda k, r: k.KVComposePress(False, r), scope=ALL, attention="eager", count=nearly),
    Setting("kvcompose:group=max,heads=max,mean=false",
            "KVComposePress(agg_group=max, agg_head=max, add_mean_across_heads=False)",
            lambda k, r: k.KVComposePress(compression_ratio=r, agg_group="max", agg_head="max",
                                          add_mean_across_heads=False),
            scope=ALL, attention="eager", count=nearly),
    Setting("dms_decode(kvzap:weights=%s):threshold=0.1,window=32",
            "DMSPress(KVzapPress(mlp), threshold=0.1, sliding_window_size=32, decoding=True)",
            lambda k, _, networks: k.DMSPress(zap(k, 0, networks), 0.1, 32, True), least=40, given="networks",
            steps=48, masks=True),
    Setting("dms_decode(knorm):threshold=-4,window=20",
            "DMSPress(KnormPress(), threshold=-4, sliding_window_size=20, decoding=True)",
            lambda k, _: k.DMSPress(k.KnormPress(), -4, 20, True), least=40, steps=48, masks=True),
    decode("knorm", "KnormPress()", lambda k: k.KnormPress(), 40),
    decode("keydiff:block=0", "KeyDiffPress()", lambda k: k.KeyDiffPress(), 33),
    decode("curdkv", "CURPress()", lambda k: k.CURPress(), 40),
    decode("lagkv:lag_size=16", "LagKVPress(lag_size=16)", lambda k: lagging(k, 0), 40),
    decode("snapkv:" + SNAPKV % (32, 5), "SnapKVPress(window_size=32), queries at their positions",
           lambda k: k.SnapKVPress(0, 32, 5), 48, least=40, placed=True),
    decode("snapkv:" + SNAPKV % (32, 5), "SnapKVPress(window_size=32)",
           lambda k: k.SnapKVPress(0, 32, 5), 48, least=40,
           known="kvpress turns all queries of the buffer to the newest position"),
    decode("tova:mode=oneshot,keep_newest=true", "TOVAPress()", lambda k: k.TOVAPress(), 40),
    Setting("decode(knorm):cut_context=false,ratio=%s,interval=40",
            "CompressionRatioDecodingPress(KnormPress(), compression_interval=40)",
            lambda k, r: k.CompressionRatioDecodingPress(k.KnormPress(), compression_interval=40,
                                                         target_compression_ratio=r),
            steps=40, by_ratio=True),
    Setting("decode(knorm):target=%d,interval=40",
            "PrefillDecodingPress(KnormPress(), DecodingPress(KnormPress(), compression_interval=40))",
            lambda k, kept, context: both(k, kept, context, 40), steps=40, cuts_context=True),
]
