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


def exact(n, ratio, lanes):
    """For presses that go on counting with the ratio: the one that kvlab's budget is."""
    kept = kept_of(n, ratio)
    return kept, 1 - kept / n


def pairs(n, ratio, lanes):
    """For presses that count (kv head, token) pairs: the ratio that drops whole tokens per lane."""
    kept = kept_of(n, ratio)
    return kept, (n - kept + 0.5 / lanes) / n


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
]
