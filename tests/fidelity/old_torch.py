"""What kvpress and transformers import of newer PyTorch releases, for Debian's PyTorch 1.13.

install() before transformers is imported, stand_in() before kvpress.  Where PyTorch has a name, its
own is taken: with 2.3 or newer nothing changes but for packages that are not installed.  Nothing here
takes part in a score except scaled_dot_product_attention, which is written as it is defined.
"""
import importlib.abc
import importlib.machinery
import importlib.metadata
import importlib.util
import math
import sys
import types

import torch

OLDEST = "2.1.0"  # what transformers asks for
UNUSED = ("datasets", "cachetools", "fire", "pandas", "peft", "accelerate")  # no press here calls them


class Nothing:
    """Stands for a class or function that is imported and not used."""

    def __init__(self, *_, **__):
        pass

    def __call__(self, *given, **_):
        return given[0] if len(given) == 1 and callable(given[0]) else Nothing()  # a decorator


class Empty(types.ModuleType):
    __path__ = []

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (Nothing,), {"__module__": self.__name__})


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds what nobody else does, if it is of one of the packages."""

    def __init__(self, *packages):
        self.packages = packages

    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in self.packages:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        return Empty(spec.name)

    def exec_module(self, module):
        pass


def is_old():
    return tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 1)


def attention(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, **_):
    """softmax(q k / sqrt(d)) v."""
    scores = query @ key.transpose(-2, -1) * (scale or 1 / math.sqrt(query.shape[-1]))
    if is_causal:
        attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
    if attn_mask is not None:
        scores = (scores.masked_fill(~attn_mask, -math.inf) if attn_mask.dtype == torch.bool
                  else scores + attn_mask)
    return scores.softmax(-1) @ value


def hooks_with_keywords():
    """Lets register_forward_hook(hook, with_kwargs=True) wrap the module's forward."""
    plain = torch.nn.Module.register_forward_hook

    class Handle:
        def __init__(self, module):
            self.module, self.forward = module, module.forward

        def remove(self):
            self.module.forward = self.forward

    def register(self, hook, *, with_kwargs=False):
        if not with_kwargs:
            return plain(self, hook)
        handle = Handle(self)

        def forward(*given, **named):
            output = handle.forward(*given, **named)
            changed = hook(self, given, named, output)
            return output if changed is None else changed

        self.forward = forward
        return handle

    torch.nn.Module.register_forward_hook = register


def fill(module, **names):
    for name, value in names.items():
        if not hasattr(module, name):
            setattr(module, name, value)


def pass_through(function=None, **_):
    return function if function else lambda f: f


def install():
    if not is_old():
        return
    version = importlib.metadata.version
    importlib.metadata.version = lambda name: OLDEST if name == "torch" else version(name)
    sys.meta_path.append(Finder("torch"))
    tree = torch.utils._pytree
    fill(tree, register_pytree_node=lambda c, f, u, **_: tree._register_pytree_node(c, f, u))
    dynamo, compiler = types.ModuleType("torch._dynamo"), types.ModuleType("torch.compiler")
    fill(dynamo, allow_in_graph=pass_through, is_compiling=lambda: False)
    fill(compiler, disable=pass_through, is_compiling=lambda: False)
    sys.modules.update({"torch._dynamo": dynamo, "torch.compiler": compiler})
    fill(torch, compiler=compiler, _dynamo=dynamo, float8_e4m3fn=torch.float16,
         float8_e5m2=torch.float16)
    fill(torch, vmap=torch._vmap_internals._vmap)
    fill(torch.nn.functional, scaled_dot_product_attention=attention)
    hooks_with_keywords()


def stand_in():
    sys.meta_path.append(
        Finder(*[name for name in UNUSED if importlib.util.find_spec(name) is None]))
