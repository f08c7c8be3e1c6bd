"""Makes a deeper or wider model out of trained ones."""
import torch

import model as llama


def grow(parent, layers, noise, shape, vocab_size):
    """A model of the given shape whose layer i starts as the parent's layer layers[i], or where
    that is None, as a new one.

    What n copies of a layer add to the hidden state is divided by n, so that the deeper model
    computes about the same.  A width or feed-forward width twice the parent's holds everything
    twice, and what reads it splits its weights at random between the two, so that the wider model
    computes the same and the two may diverge.  Noise (relative to the size of a matrix) is added
    to the matrices of repeated or wider layers.
    """
    if len(layers) != shape["layers"]:
        raise SystemExit("the parent's list has %d layers, want %d, those of the shape"
                         % (len(layers), shape["layers"]))
    for name in ("heads", "kv_heads", "head_dim"):
        if shape[name] != parent.shape[name]:
            raise SystemExit("%s is %d, want the parent's %d"
                             % (name, shape[name], parent.shape[name]))
    model = llama.Model(shape, vocab_size)
    wider = times_of(shape, parent.shape, "dim")
    with torch.no_grad():
        model.embed.weight.copy_(parent.embed.weight.repeat(1, wider))
        model.head.weight.copy_(split(parent.head.weight, wider))
        model.norm.weight.copy_(parent.norm.weight.repeat(wider))
        for block, source in zip(model.blocks, layers):
            if source is None:
                continue
            copies = layers.count(source)
            copy_block(block, parent.blocks[source], wider, times_of(shape, parent.shape, "ff"))
            for parameter in block.parameters():
                if parameter.dim() > 1 and (copies > 1 or wider > 1):
                    parameter += noise * parameter.std() * torch.randn_like(parameter)
            block.o.weight /= copies
            block.down.weight /= copies
    return model


def put_in_front(front, model):
    """The model with the layers of `front` before its own; else their shapes are the same."""
    for name in sorted(front.shape.keys() & model.shape.keys() - {"layers", "look_back"}):
        if front.shape[name] != model.shape[name]:
            raise SystemExit("%s of the layers in front is %s, want the model's %s"
                             % (name, front.shape[name], model.shape[name]))
    shape = dict(model.shape, layers=front.shape["layers"] + model.shape["layers"])
    both = llama.Model(shape, len(model.embed.weight))
    both.embed, both.head, both.norm = model.embed, model.head, model.norm
    both.blocks = torch.nn.ModuleList([*front.blocks, *model.blocks])
    return both


def times_of(shape, parent_shape, name):
    times = shape[name] // parent_shape[name]
    if times not in (1, 2) or times * parent_shape[name] != shape[name]:
        raise SystemExit("%s is %d, want the parent's %d or twice that"
                         % (name, shape[name], parent_shape[name]))
    return times


def copy_block(block, source, wider, wider_ff):
    """Fills a block whose width and feed-forward width are 1 or 2 times those of its source."""
    for name in ("attn_norm", "ffn_norm"):
        getattr(block, name).weight.copy_(getattr(source, name).weight.repeat(wider))
    for name in ("q", "k", "v"):
        getattr(block, name).weight.copy_(split(getattr(source, name).weight, wider))
    for name in ("gate", "up"):
        weight = getattr(source, name).weight.repeat(wider_ff, 1)
        getattr(block, name).weight.copy_(split(weight, wider))
    block.o.weight.copy_(source.o.weight.repeat(wider, 1))
    block.down.weight.copy_(split(source.down.weight, wider_ff).repeat(wider, 1))


def split(weight, times):
    """[out][in] to [out][times * in]: random shares of every weight for equal inputs."""
    if times == 1:
        return weight
    share = torch.rand_like(weight)
    return torch.cat((share * weight, (1 - share) * weight), 1)
