"""One prefill that many presses listen to, each with a cache of its own.

Presses cut the cache of a layer when its attention has run, so that what layers compute does not depend on them.
"""
import copy
import time


class Cut:
    """What a press leaves of a prefill: a cache, per layer the keys that it masks, and the seconds that it took."""

    def __init__(self, cache, masks, seconds=0.0):
        self.cache, self.masks, self.seconds = cache, masks, seconds

    def kept(self, where, n_kv_heads, n_tokens):
        """A set per lane; `where` has the positions of keys."""
        kept = []
        for layer, masked in zip(self.cache.layers, self.masks):
            # KVComposePress(structured=False) leaves what its second reading stored behind the context.
            for head in layer.keys[0, :, :n_tokens]:
                kept.append({where[len(kept)][row.tobytes()] for row in head.numpy()})
            if masked is not None:
                for lane, position in zip(*(part.tolist() for part in masked[1:])):
                    kept[len(kept) - n_kv_heads + lane].discard(position)
        return kept


def shares(press):
    """Whether a press does all it does where a layer's attention has run."""
    from kvpress import BasePress

    return type(press).__call__ is BasePress.__call__ and type(press).forward_hook is BasePress.forward_hook


def hidden(theirs, ids, cache):
    """Through the layers, but for logits."""
    import torch

    theirs.model.config._attn_implementation = "sdpa"
    with torch.no_grad():
        return theirs.model.model(input_ids=torch.tensor([ids]), past_key_values=cache).last_hidden_state


def prefill(theirs, presses, ids):
    """Cuts of presses (None: nothing is cut), in their order."""
    import torch
    from transformers import DynamicCache

    cuts = [Cut(DynamicCache(), []) for _ in presses]
    together = [(p, cut) for p, cut in zip(presses, cuts) if p is None or shares(p)]

    def listen(module, given, kwargs, output):
        dense = kwargs["past_key_values"].layers[module.layer_idx]
        for press, cut in together:
            begin = time.time()
            module.masked_key_indices = None
            cut.cache.update(dense.keys, dense.values, module.layer_idx)
            if press:
                press.forward_hook(module, given, dict(kwargs, past_key_values=cut.cache), output)
            cut.masks.append(module.masked_key_indices)
            cut.seconds += time.time() - begin
        module.masked_key_indices = None
        return output

    if together:
        hooks = []
        for press, _ in together:
            if press:
                press.post_init_from_model(theirs.model)
        for layer in theirs.layers:
            layer.masked_key_indices = None
            layer.rotary_emb = theirs.model.model.rotary_emb
            hooks.append(layer.register_forward_hook(listen, with_kwargs=True))
        try:
            hidden(theirs, ids, DynamicCache())
        finally:
            for hook in reversed(hooks):
                hook.remove()
    for press, cut in zip(presses, cuts):
        if press is None or shares(press):
            continue
        begin = time.time()
        for layer in theirs.layers:
            layer.masked_key_indices = None
        with torch.no_grad(), press(theirs.model):  # some work when they end
            hidden(theirs, ids, cut.cache)
        cut.masks = [layer.masked_key_indices for layer in theirs.layers]
        cut.seconds = time.time() - begin
    return cuts


def greedy(theirs, cut, question, at, n_new, ends):
    """What transformers answers on what a press left: the question follows at its positions, in one piece unless layers
    hold different numbers of tokens, for which transformers has no mask."""
    import torch

    cache = copy.deepcopy(cut.cache)
    for layer, masked in zip(theirs.layers, cut.masks):
        layer.masked_key_indices = masked
    even = len({layer.keys.shape[2] for layer in cache.layers}) == 1
    theirs.model.config._attn_implementation = "sdpa"
    pieces, said = [question] if even else [[t] for t in question], []
    with torch.no_grad():
        while True:
            for ids in pieces:
                where = torch.arange(at, at + len(ids))[None]
                logits = theirs.model(torch.tensor([ids]), past_key_values=cache, position_ids=where,
                                      logits_to_keep=1).logits[0, -1]
                at += len(ids)
            best = int(logits.argmax())
            if best in ends or len(said) == n_new:
                break
            said.append(best)
            pieces = [[best]]
    for layer in theirs.layers:
        layer.masked_key_indices = None
    return said
