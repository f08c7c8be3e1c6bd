"""Trains a model by a configuration file: python3 train.py --config tiny.json --out DIR

The schedule counts steps and every step has its own seed, so a run that is interrupted and
resumed from its checkpoint gives the same file.  Prints a log line every 50 steps.  A "parent" is
DIR/NAME.pt, or where that is not there, DIR/NAME.gguf, as export.py writes it.

In "parent" the layers of another model may stand in "front" of its own.  The configuration's own
"front" says how many these are: a stage's "front_dropout" is for them, and the span loss counts
layers without them.  With "only_blocks" embeddings and output rows stay as the parent has them;
with "only_bags" only texts whose words are counted teach the next token.

A step may have several "parts", each of "batch" texts, whose gradients are averaged; --workers
shares them out, and then the log tells of those of the first worker only.
"""
import argparse
import json
import math
import os
import random
import tempfile
import time

import torch
import torch.distributed
import torch.multiprocessing
import torch.nn.functional as F

import model as llama
import objectives
from batches import Batch
from evaluate import quick_report
from export import load_gguf
from grow import grow, put_in_front
from tasks import VOCAB
from tokenizer import PAD

LOG_EVERY, SAVE_EVERY, CHECK_EVERY = 50, 200, 400
PROBES = ("probe", "key_probe", "sum_probe", "operand_probe", "query_probe", "place_probe",
          "bag_probe")
RULER_TASKS = ("niah_values", "niah_keys", "vt", "fwe")
COUNTS = {"count": objectives.count_loss, "share": objectives.share_loss}
STATE_LOSSES = PROBES + ("still",)
# Of whose attention: what _choose() calls the cases, and where these are.
ATTENTION_LOSSES = {
    "count": ("places", objectives.value_starts), "share": ("places", objectives.value_starts),
    "link": ("links", objectives.positions), "spread": ("bags", objectives.positions),
    "own": ("words", objectives.positions), "listed": ("listings", objectives.positions),
    "pick": ("listings", objectives.positions), "rest": ("resting", objectives.positions),
    "sink": ("idle", objectives.positions),
    "span": ("questions", objectives.question_ends)}
EXTRA_LOSSES = STATE_LOSSES + tuple(ATTENTION_LOSSES)  # see objectives.py


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", required=True)
    parser.add_argument("--out", required=True, help="directory of the checkpoint")
    parser.add_argument("--device", default="cpu", help="cpu, or cuda (PyTorch 2.0 or newer)")
    parser.add_argument("--threads", type=int, default=1, help="of each worker")
    parser.add_argument("--workers", type=int, default=1,
                        help="processes that share the parts of a step (configuration: \"parts\")")
    return parser.parse_args()


class Schedule:
    """Stages of steps.  The learning rate warms up and then follows a cosine over the whole run or
    as many steps as the rate says (with hold_first from the second stage on), or what the stage
    says: [first, last]."""

    def __init__(self, config):
        self.stages, self.starts, start = config["stages"], [], 0
        for stage in self.stages:
            self.starts.append(start)
            start += stage["steps"]
        self.steps = start
        self.rate = config["learning_rate"]

    def stage(self, step):
        """The stage of a step and how far in it the step is (0..1)."""
        i = max(i for i, start in enumerate(self.starts) if start <= step)
        return self.stages[i], (step - self.starts[i]) / self.stages[i]["steps"]

    def learning_rate(self, step):
        warm_up = min(1.0, (step + 1) / self.rate["warm_up"])
        stage, stage_done = self.stage(step)
        if "learning_rate" in stage:
            return warm_up * at(stage["learning_rate"], stage_done)
        decay_from = self.starts[1] if len(self.starts) > 1 and self.rate["hold_first"] else 0
        decay_to = self.rate.get("steps", self.steps)
        done = max(0.0, (step - decay_from) / (decay_to - decay_from))
        cosine = 0.5 * (1 + math.cos(math.pi * done))
        rate = self.rate["last"] + (self.rate["peak"] - self.rate["last"]) * cosine
        return rate * warm_up


def token_losses(model, batch, unseen, **options):
    """Cross entropies and weights of all weighted tokens, and what the model returns besides.

    `unseen`: the padding token, which is never right, counts as often as there are tokens that
    training does not show, so that their rows in the exported file can be copies of its row.
    """
    with torch.autocast(batch.ids.device.type, torch.bfloat16):
        states, wanted, seen = model(batch.ids, batch.positions, batch.bias(), **options)
        b, t = (batch.weights[:, 1:] > 0).nonzero(as_tuple=True)
        logits = model.head(states[b, t])
    logits = logits.float()
    if unseen:
        logits[:, PAD] += math.log(len(VOCAB.tokenizer.tokens) - VOCAB.size)
    losses = F.cross_entropy(logits, batch.ids[b, t + 1], reduction="none")
    return losses, batch.weights[b, t + 1], wanted, seen


class Trainer:
    """One of `workers` that have the same weights and make the gradients of different parts."""

    def __init__(self, config, out, worker=0, workers=1):
        self.config, self.schedule = config, Schedule(config)
        self.worker, self.workers, self.n_parts = worker, workers, config.get("parts", 1)
        torch.manual_seed(config["seed"])
        self.model, parent = self._initial_model(out)
        dim = config["shape"]["dim"]
        self.probe = objectives.Probe(dim, config.get("probe", {"offsets": 1})["offsets"])
        self.key_probe = objectives.Probe(dim, config.get("key_probe", {"tokens": 1})["tokens"])
        self.sum_probe = objectives.Probe(dim, objectives.SUM_TOKENS)
        self.operand_probe = objectives.Probe(dim, objectives.OPERAND_TOKENS)
        self.query_probe = objectives.Probe(dim, 1 + objectives.QUERY_TOKENS)
        self.place_probe, self.bag_probe = objectives.Probe(dim, 1), objectives.Probe(dim, 1)
        self.modules = {"model": self.model, **{name: getattr(self, name) for name in PROBES}}
        self.step, self.tokens, self.seconds = 0, 0, 0.0
        for name in config.get("parent", {}).get("probes", []):
            if parent:
                self.modules[name].load_state_dict(parent[name])
        self.optimizer = self._make_optimizer()
        self.path = os.path.join(out, config["name"] + ".pt")
        if os.path.exists(self.path):
            self._resume()

    def _initial_model(self, out):
        """The model, and the parent's checkpoint if there is one."""
        shape, parent = self.config["shape"], self.config.get("parent")
        if parent is None:
            return llama.Model(shape, VOCAB.size), None
        source, checkpoint = load_parent(out, parent["name"])
        if "front" in parent:
            front, _ = load_parent(out, parent["front"])
            source = put_in_front(front, source)
        return grow(source, parent["layers"], parent["noise"], shape, VOCAB.size), checkpoint

    def _make_optimizer(self):
        probes = [self.modules[name] for name in PROBES if name in self.config]
        if self.config.get("only_blocks"):
            self.model.requires_grad_(False)
            self.model.blocks.requires_grad_()
        parameters = [p for p in self.model.parameters() if p.requires_grad]
        matrices = [p for p in parameters + parameters_of(probes) if p.dim() > 1]
        vectors = [p for p in parameters if p.dim() == 1]
        return torch.optim.AdamW(
            [{"params": matrices, "weight_decay": self.config["weight_decay"]},
             {"params": vectors, "weight_decay": 0.0}],
            lr=0.0, betas=(0.9, 0.97), eps=1e-9)

    def _resume(self):
        checkpoint = torch.load(self.path, map_location="cpu")
        stored = checkpoint["config"]
        for name in ("shape", "seed", "parent"):
            if stored.get(name) != self.config.get(name):
                raise SystemExit("%s is of another %s; use another --out, or remove it"
                                 % (self.path, name))
        for name, part in self.modules.items():
            if name in checkpoint:  # it may be older than a probe that the configuration lacks
                part.load_state_dict(checkpoint[name])
        self.optimizer.load_state_dict(checkpoint["optimizer"])
        self.step, self.tokens = checkpoint["step"], checkpoint["tokens"]
        self.seconds = checkpoint["seconds"]

    def train_step(self):
        stage, done = self.schedule.stage(self.step)
        for group in self.optimizer.param_groups:
            group["lr"] = self.schedule.learning_rate(self.step)
        self.optimizer.zero_grad(set_to_none=True)
        reports = [self._part(part, stage, done)
                   for part in range(self.worker, self.n_parts, self.workers)]
        self._join_gradients()
        if stage.get("only_probes"):  # new ones learn, as a GGUF file has none; the model waits
            for p in self.model.parameters():
                p.grad = None
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.step += 1
        self.tokens += self.n_parts * stage["batch"] * stage["length"]
        return reports

    def _part(self, part, stage, done):
        """Adds the gradients of a part; the first has the seed that a step of one part has."""
        seed = self.config["seed"]
        rng = random.Random("%s/%d" % (seed, self.step) + ("/%d" % part if part else ""))
        torch.manual_seed(seed * 1000003 + self.step + part * 15485863)
        batch = Batch(rng, stage["batch"], stage["length"], stage["mix"], stage.get("longest", 0))
        loss, report = self._losses(batch, stage, done, rng)
        (loss / self.n_parts).backward()
        return report

    def _join_gradients(self):
        """Adds up the gradients of all workers.  Missing ones are zeros, however many workers there
        are, as the optimizer treats both differently."""
        if self.n_parts == 1:
            return
        parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        if self.workers > 1:
            torch.distributed.all_reduce(flat)
        for p, gradient in zip(parameters, flat.split([p.numel() for p in parameters])):
            p.grad = gradient.view_as(p)

    def _losses(self, batch, stage, done, rng):
        """The weighted sum of all losses, and each one's value for the log."""
        config = self.config
        weight = {name: at(stage.get(name, [0, 0]), done) for name in EXTRA_LOSSES}
        chosen = self._choose(batch.docs, weight, rng)
        rows = self._attention_rows(chosen, weight)
        options = {"key_dropout": stage.get("key_dropout", 0.0)}
        options["want"] = [layer for name in STATE_LOSSES if weight[name] > 0
                           for layer in layers_of(config[name])]
        if "front_dropout" in stage:
            options["front"] = config["front"]
            options["front_dropout"] = torch.tensor(
                [0.0 if doc.bag or rng.random() > stage["front_dropout"] else rng.uniform(0.3, 1.0)
                 for doc in batch.docs])
        if stage.get("only_bags"):
            batch.leave_out([not doc.bag for doc in batch.docs])
        losses, weights, wanted, seen = token_losses(
            self.model, batch, stage.get("unseen", False), rows=list(rows.values()), **options)
        loss = (losses * weights).sum() / weights.sum().clamp(min=1)
        attention = dict(zip(rows, seen))

        parts = {}
        if weight["probe"] > 0:
            parts["probe"] = objectives.previous_tokens_loss(
                self.probe, wanted[config["probe"]["layer"]], batch.ids, rng)
        if weight["key_probe"] > 0:
            parts["key_probe"] = objectives.key_loss(
                self.key_probe, wanted[config["key_probe"]["layer"]], batch.docs, rng,
                stage.get("key_by_answer", False))
        if weight["query_probe"] > 0:
            parts["query_probe"] = objectives.query_loss(
                self.query_probe, wanted[config["query_probe"]["layer"]], batch.docs, rng)
        if weight["place_probe"] > 0:
            parts["place_probe"] = mean_of(objectives.place_loss(
                self.place_probe, wanted[layer], batch.docs, rng, stage.get("place_starts", False))
                for layer in layers_of(config["place_probe"]))
        for name, what in (("sum_probe", "sum"), ("operand_probe", "operands")):
            if weight[name] > 0:
                parts[name] = objectives.sum_loss(
                    self.modules[name], wanted[config[name]["layer"]], batch.docs, rng, what)
        if chosen["bags"] and weight["bag_probe"] > 0:
            parts["bag_probe"] = objectives.bag_loss(
                self.bag_probe, wanted[config["bag_probe"]["layer"]], batch.docs,
                chosen["bags"])
        if weight["still"] > 0:
            parts["still"] = objectives.still_loss(
                self.model.embed(batch.ids), wanted[config["still"]["layer"]], batch.docs)
        parts.update(self._attention_losses(attention, chosen, batch, stage))
        parts = {name: part for name, part in parts.items() if part is not None}
        for name, part in parts.items():
            loss = loss + weight[name] * part

        answers = weights >= 1
        report = {}
        for name, some in (("other", ~answers), ("answer", answers)):
            if some.any():
                report[name] = losses[some].mean().item()
        report.update((name, part.item()) for name, part in parts.items())
        return loss, report

    def _choose(self, docs, weight, rng):
        """What losses ask about: the cases of objectives.py by what they are."""
        def some(names, choose, *arguments):
            return choose(docs, *arguments) if any(weight[name] > 0 for name in names) else []

        chosen = {"questions": some(["span"], objectives.choose_questions, rng)}
        chosen["span_layers"] = rng.sample(self.config["span"]["layers"], 2) \
            if chosen["questions"] else []
        chosen["places"] = some(COUNTS, objectives.choose_places, rng)
        chosen["links"] = some(["link"], objectives.choose_links)
        chosen["bags"] = some(["bag_probe", "spread"], objectives.choose_bags, rng)
        chosen["words"] = some(["own"], objectives.choose_words, rng)
        chosen["listings"] = some(["listed", "pick"], objectives.choose_listings)
        chosen["resting"] = some(["rest"], objectives.choose_resting, rng)
        chosen["idle"] = some(["sink"], objectives.choose_idle, rng)
        return chosen

    def _attention_rows(self, chosen, weight):
        """Of which rows which loss wants the attention in a layer: (layer, (batch indices,
        positions)) by (loss, layer)."""
        rows = {}
        for name, (what, where) in ATTENTION_LOSSES.items():
            if weight[name] > 0 and chosen[what]:
                layers = chosen["span_layers"] if name == "span" else layers_of(self.config[name])
                rows.update(((name, layer), (layer, where(chosen[what]))) for layer in layers)
        return rows

    def _attention_losses(self, attention, chosen, batch, stage):
        """The losses of attention, a tensor by (loss, layer)."""
        def mean_over_layers(name, loss, *arguments):
            return mean_of(loss(attention[name, layer], *arguments)
                           for layer in layers_in(attention, name))

        parts = {name: mean_over_layers(name, loss, chosen["places"])
                 for name, loss in COUNTS.items()}
        parts["link"] = mean_over_layers("link", objectives.link_loss, chosen["links"])
        parts["spread"] = mean_over_layers("spread", objectives.spread_loss, chosen["bags"])
        parts["own"] = mean_over_layers("own", objectives.own_loss, chosen["words"], batch)
        parts["listed"] = mean_over_layers("listed", objectives.listed_loss, chosen["listings"])
        parts["pick"] = mean_over_layers("pick", objectives.pick_loss, chosen["listings"], batch)
        parts["rest"] = mean_of(
            objectives.rest_loss(attention["rest", layer], chosen["resting"], layer > 0)
            for layer in layers_in(attention, "rest"))
        parts["sink"] = mean_over_layers("sink", objectives.sink_loss)
        span_layers = layers_in(attention, "span")
        if span_layers:
            parts["span"] = objectives.span_loss(
                [layer - self.config.get("front", 0) for layer in span_layers],
                [attention["span", layer] for layer in span_layers], chosen["questions"],
                stage.get("span_mass", self.config["span"]["mass"]))
        return parts

    def run(self):
        recent, first = [], self.worker == 0
        checks = not self.config.get("only_blocks")  # layers that stand in front answer nothing
        start = time.time() - self.seconds
        if first:
            print("%d parameters, %d steps" % (
                sum(p.numel() for p in self.model.parameters()), self.schedule.steps), flush=True)
        while self.step < self.schedule.steps:
            recent += self.train_step()
            self.seconds = time.time() - start
            if self.step % LOG_EVERY == 0:
                if first:
                    self.log(recent)
                    self.check_gate(recent)
                recent = []
            last = self.step == self.schedule.steps
            if first and (self.step % SAVE_EVERY == 0 or last):
                self.save()
            if first and checks and (self.step % CHECK_EVERY == 0 or last):
                print("      " + quick_report(self.model, self._ruler_tasks()), flush=True)

    def _ruler_tasks(self):
        stage, _ = self.schedule.stage(self.step - 1)
        return RULER_TASKS if "niah" in stage["mix"] else ()

    def log(self, recent):
        stage, _ = self.schedule.stage(self.step - 1)
        parts = []
        for name in ("answer", "other") + EXTRA_LOSSES:
            values = [report[name] for report in recent if name in report]
            if values:
                parts.append("%s %.3f" % (name, mean(values)))
        print("%5d %5.0f s %6.2f Mtok T %4d  %s" % (
            self.step, self.seconds, self.tokens / 1e6, stage["length"], "  ".join(parts)),
            flush=True)

    def check_gate(self, recent):
        """Copying must have formed at the end of the stage with a gate, else a new seed is due."""
        stage, _ = self.schedule.stage(self.step - 1)
        if "gate" not in stage or self.step not in self.schedule.starts:
            return
        loss = mean([r["answer"] for r in recent if "answer" in r])
        if loss > stage["gate"]:
            raise SystemExit("copy loss %.2f at step %d, want at most %.2f: use another seed"
                             % (loss, self.step, stage["gate"]))

    def save(self):
        temporary = self.path + ".new"
        llama.save(temporary, self.model, self.step, {
            "config": self.config, **{name: self.modules[name].state_dict() for name in PROBES},
            "optimizer": self.optimizer.state_dict(), "tokens": self.tokens,
            "seconds": self.seconds})
        os.replace(temporary, self.path)


def load_parent(out, name):
    """The model, and its checkpoint if there is one."""
    path = os.path.join(out, name)
    if os.path.exists(path + ".pt"):
        return llama.load(path + ".pt", VOCAB.size)
    if os.path.exists(path + ".gguf"):
        return load_gguf(path + ".gguf"), None  # it has no probes
    raise SystemExit("%s: neither %s.pt nor %s.gguf, the parent, is there" % (out, name, name))


def at(ends, done):
    """The value between two ends."""
    return ends[0] + (ends[1] - ends[0]) * done


def mean(values):
    return sum(values) / len(values)


def parameters_of(modules):
    return [p for module in modules for p in module.parameters()]


def layers_of(config):
    """The layer or layers that the configuration of a loss names."""
    return config["layers"] if "layers" in config else [config["layer"]]


def layers_in(attention, wanted):
    return [layer for name, layer in attention if name == wanted]


def mean_of(losses):
    """Of those that there are, or None."""
    losses = [loss for loss in losses if loss is not None]
    return mean(losses) if losses else None


def work(worker, arguments, config, meeting):
    """One of arguments.workers processes; they meet at a file."""
    torch.set_num_threads(arguments.threads)
    if arguments.device != "cpu":
        torch.set_default_device(arguments.device)
    if arguments.workers > 1:
        torch.distributed.init_process_group(
            "gloo", init_method="file://" + meeting, rank=worker, world_size=arguments.workers)
    Trainer(config, arguments.out, worker, arguments.workers).run()


def main():
    arguments = parse_arguments()
    with open(arguments.config, encoding="utf-8") as file:
        config = json.load(file)
    n_parts = config.get("parts", 1)
    if arguments.workers < 1 or n_parts % arguments.workers:
        raise SystemExit("--workers is %d, want a divisor of the configuration's parts, %d"
                         % (arguments.workers, n_parts))
    if not config.get("front") and any("front_dropout" in stage for stage in config["stages"]):
        raise SystemExit("%s: a stage has front_dropout, want a \"front\" that says of how many layers"
                         % arguments.config)
    os.makedirs(arguments.out, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        start = (arguments, config, os.path.join(folder, "meeting"))
        spawn = torch.multiprocessing.get_context("spawn")
        others = [spawn.Process(target=work, args=(i,) + start, daemon=True)  # end with this one
                  for i in range(1, arguments.workers)]
        for process in others:
            process.start()
        work(0, *start)
        for process in others:
            process.join()
    if any(process.exitcode for process in others):
        raise SystemExit("a worker failed after the last step")


if __name__ == "__main__":
    main()
