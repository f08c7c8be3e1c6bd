"""Makes a deeper model out of a trained one by repeating its layers."""
import torch

import model as llama


def grow(parent, layers, noise, vocab_size):
    """A model whose layer i starts as the parent's layer layers[i].

    What n copies of a layer add to the hidden state is divided by n, so that the deeper model
    computes about the same; noise (relative to the size of a matrix) lets the copies diverge.
    """
    model = llama.Model(dict(parent.shape, layers=len(layers)), vocab_size)
    with torch.no_grad():
        for name in ("embed", "head", "norm"):
            getattr(model, name).load_state_dict(getattr(parent, name).state_dict())
        for block, source in zip(model.blocks, layers):
            block.load_state_dict(parent.blocks[source].state_dict())
            copies = layers.count(source)
            if copies == 1:
                continue
            for parameter in block.parameters():
                if parameter.dim() > 1:
                    parameter += noise * parameter.std() * torch.randn_like(parameter)
            block.o.weight /= copies
            block.down.weight /= copies
    return model
